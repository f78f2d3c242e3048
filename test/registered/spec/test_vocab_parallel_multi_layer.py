"""Multi-layer MTP: one head for every layer, and the probabilities of its chains."""

import contextlib
import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.layers.dense_logsumexp import dense_logsumexp
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.speculative import (
    multi_layer_eagle_draft_extend_cuda_graph_runner as multi_layer_graphs,
)
from sglang.srt.speculative import multi_layer_eagle_worker_v2 as multi_layer
from sglang.srt.speculative.chain_confidence import ChainConfidence
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits.one_rank_draft_kit import packed_draft, packed_output
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

VOCAB, HIDDEN, ROWS = 301, 4, 3


def random_logits(rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, VOCAB, generator=generator) * 3


def output_of(packed, logits: torch.Tensor) -> LogitsProcessorOutput:
    """The output of the path that ``packed`` stands for (``None``: dense), with what a
    collection of probabilities adds."""
    if packed is None:
        return LogitsProcessorOutput(
            next_token_logits=logits.clone(), logits_logsumexp=dense_logsumexp(logits)
        )
    return packed_output(packed, logits)


class BothPathsCase(CustomTestCase):
    def assert_same_topk(self, dense, packed):
        """Probability within the contract's tolerance, ids equal."""
        self.assertEqual(packed[1].tolist(), dense[1].tolist())
        torch.testing.assert_close(packed[0], dense[0], atol=2e-5, rtol=0)
        self.assertLess(packed[0].max().item(), 1.0)


class TestMultiLayerGraphRunner(BothPathsCase):
    """The hook for the selection inside a captured draft extend."""

    def topk(self, packed, pruned):
        runner_class = multi_layer_graphs.MultiLayerEagleDraftExtendCudaGraphRunner
        runner = runner_class.__new__(runner_class)
        runner.prune_draft_extend_logits, runner.topk = pruned, 1
        runner.eagle_worker = SimpleNamespace(vocab_parallel_draft=packed)
        # One more than the batch: a graph's buffers are as wide as its largest size.
        runner.buffers = SimpleNamespace(select_index=torch.tensor([6, 1, 4, 0]))
        output = output_of(packed, random_logits(ROWS if pruned else 8, seed=1))
        runner._compute_topk(output, ROWS)
        return output.topk_p, output.topk_index

    def test_both_paths_agree(self):
        """Red when the hook selects other rows than the dense one, or hands on another
        probability than the softmax's."""
        for pruned in (True, False):
            with self.subTest(pruned=pruned):
                dense = self.topk(None, pruned)
                packed = self.topk(packed_draft(VOCAB), pruned)
                self.assertEqual(packed[1].shape, (ROWS, 1))
                self.assert_same_topk(dense, packed)

    def collected(self, packed, pruned, step):
        """What a captured step leaves in the static buffer, and its tokens."""
        runner_class = multi_layer_graphs.MultiLayerEagleDraftExtendCudaGraphRunner
        runner = runner_class.__new__(runner_class)
        runner.prune_draft_extend_logits, runner.topk, runner.step = pruned, 1, step
        confidence = ChainConfidence(max_rows=4, max_steps=2, device="cpu")
        runner.eagle_worker = SimpleNamespace(
            vocab_parallel_draft=packed,
            draft_confidence=confidence,
            chain_mtp_hidden_states=False,
        )
        select_index = torch.tensor([6, 1, 4, 0])
        runner.buffers = SimpleNamespace(select_index=select_index, draft_probs=None)
        runner.model_context = contextlib.nullcontext
        output = output_of(packed, random_logits(ROWS if pruned else 8, seed=1))
        model = SimpleNamespace(forward=lambda *_: output)
        runner.model_runner = SimpleNamespace(model=model)
        batch = SimpleNamespace(
            global_dp_buffer_len=None,
            global_num_tokens_cpu=None,
            dp_padding_mode=SimpleNamespace(is_max_len=lambda: False),
            out_cache_loc=None,
            spec_info=SimpleNamespace(hidden_states=None),
            input_ids=None,
            positions=None,
        )
        with (
            patch.object(multi_layer_graphs, "set_dp_buffer_len", lambda *_: None),
            patch.object(multi_layer_graphs, "set_is_extend_in_batch", lambda _: None),
        ):
            ret = runner._run_step_body(batch, ROWS, ROWS)
        return confidence.take(ROWS, 2), ret.topk_index

    def test_a_captured_step_leaves_its_probability(self):
        """Red when the probability is another row's or token's, or goes to another step's
        column."""
        logits = {True: random_logits(ROWS, seed=1)}
        logits[False] = random_logits(8, seed=1)[torch.tensor([6, 1, 4])]
        for pruned in (True, False):
            for packed in (None, packed_draft(VOCAB)):
                with self.subTest(pruned=pruned, packed=packed is not None):
                    got, token_ids = self.collected(packed, pruned, step=1)
                    wanted = logits[pruned].double().softmax(-1).gather(1, token_ids)
                    error = got[:, 1:].double() - wanted
                    self.assertLess(error.abs().max().item(), 2e-5)
                    self.assertEqual(got[:, 0].tolist(), [0.0] * ROWS)

    def test_lost_ids_stop_the_capture(self):
        """Red when a packed step without ids drafts token 0 instead of failing."""
        packed = packed_draft(VOCAB)
        lost = LogitsProcessorOutput(next_token_logits=torch.zeros(ROWS, 1))
        with (
            patch(f"{__name__}.output_of", lambda *_: lost),
            self.assertRaisesRegex(RuntimeError, "logits_token_ids"),
        ):
            self.topk(packed, True)


class TestMultiLayerWorker(BothPathsCase):
    """The two eager loops over the layers, each layer with a head of its own."""

    LAYERS = 3

    def setUp(self):
        self.rotated = []
        for name in ("maybe_detect_nan", "maybe_detect_inf", "maybe_detect_oob"):
            self.enterContext(patch.object(multi_layer, name, self.probe(name)))
        self.enterContext(
            patch.object(
                multi_layer,
                "rotate_input_ids",
                lambda *args: self.rotated.append(args[3].flatten().tolist()),
            )
        )
        self.enterContext(patch.object(multi_layer, "replace", lambda batch: batch))
        self.probes = []

    def probe(self, name):
        return lambda value, *_: self.probes.append((name, value))

    def worker(self, packed, rows):
        def runner(layer):
            output = output_of(packed, random_logits(rows, seed=layer))
            return SimpleNamespace(
                forward=lambda _: SimpleNamespace(logits_output=output),
                req_to_token_pool=None,
                token_to_kv_pool=None,
                attn_backend=SimpleNamespace(init_forward_metadata=lambda _: None),
                model_config=SimpleNamespace(
                    hf_config=SimpleNamespace(architectures=["Draft"])
                ),
            )

        worker = multi_layer.MultiLayerEagleDraftWorker.__new__(
            multi_layer.MultiLayerEagleDraftWorker
        )
        worker.draft_runner_list = [runner(layer) for layer in range(self.LAYERS)]
        worker.draft_runner = worker.draft_runner_list[0]
        worker.speculative_num_steps = self.LAYERS
        worker.speculative_num_draft_tokens = self.LAYERS + 1
        worker.topk, worker.use_rejection_sampling = 1, False
        worker.speculative_algorithm = SimpleNamespace(is_standalone=lambda: False)
        worker.chain_mtp_hidden_states = False
        worker.draft_extend_num_front_tokens = 0
        worker.device, worker.plan_stream = "cpu", None
        worker.plan_stream_ctx = unittest.mock.MagicMock()
        worker.cuda_graph_runner_for_draft_extend = None
        worker.model_config = SimpleNamespace(vocab_size=VOCAB)
        worker.vocab_parallel_draft = packed
        worker.draft_confidence = ChainConfidence(8, self.LAYERS, "cpu")
        return worker

    def batch(self, **fields):
        mode = SimpleNamespace(
            is_idle=lambda: False,
            is_extend=lambda **_: True,
            is_decode=lambda: False,
        )
        return SimpleNamespace(
            forward_mode=mode,
            seq_lens=torch.tensor([9, 12, 30]),
            extend_seq_lens=torch.full((ROWS,), self.LAYERS + 1),
            extend_start_loc=None,
            input_ids=None,
            spec_info=SimpleNamespace(),
            **fields,
        )

    def after_prefill(self, packed):
        self.rotated, self.probes = [], []
        batch = self.batch()
        with patch.object(
            multi_layer,
            "ForwardBatch",
            SimpleNamespace(init_new=lambda *args, **kwargs: batch),
        ):
            draft_input = self.worker(packed, ROWS)._draft_extend_for_prefill(
                batch, torch.zeros(ROWS, HIDDEN), torch.tensor([1, 2, 3])
            )
        self.collected = draft_input.draft_probability
        return draft_input.topk_p, draft_input.topk_index

    def after_verify(self, packed, pruned):
        self.rotated = []
        result = SimpleNamespace(
            logits_output=SimpleNamespace(hidden_states=None),
            next_token_ids=torch.arange(ROWS * (self.LAYERS + 1)),
            accept_lens=torch.tensor([2, 4, 1]),
            next_draft_input=SimpleNamespace(),
            can_run_cuda_graph=False,
        )
        batch = self.batch()
        prepare = unittest.mock.Mock(return_value=batch)
        with (
            patch.object(multi_layer, "prepare_for_draft_extend", prepare),
            patch.object(multi_layer, "require_gathered_buffer", lambda: not pruned),
        ):
            rows = ROWS if pruned else ROWS * (self.LAYERS + 1)
            self.worker(packed, rows)._draft_extend_for_decode(batch, result)
        self.collected = result.next_draft_input.draft_probability
        return result.next_draft_input.topk_p, result.next_draft_input.topk_index

    def assert_collected(self, token_ids, rows, selected=None):
        """The probabilities of the tokens of every layer, against FP64."""
        layers = [random_logits(rows, seed=layer) for layer in range(self.LAYERS)]
        if selected is not None:
            layers = [logits[selected] for logits in layers]
        wanted = torch.stack([x.double().softmax(-1) for x in layers], dim=1)
        wanted = wanted.gather(2, token_ids.unsqueeze(-1)).squeeze(-1)
        error = self.collected.double() - wanted
        self.assertLess(error.abs().max().item(), 2e-5)
        return self.collected

    def test_chains_carry_their_probabilities(self):
        """Red when a layer's probability is lost, or of another row, token or layer, or
        when the two paths differ in a bit."""
        after_verify = torch.tensor([1, 7, 8])
        for pruned in (None, True, False):
            found = []
            for packed in (None, packed_draft(VOCAB)):
                if pruned is None:
                    _, token_ids = self.after_prefill(packed)
                    rows, selected = ROWS, None
                else:
                    _, token_ids = self.after_verify(packed, pruned)
                    rows = ROWS if pruned else ROWS * (self.LAYERS + 1)
                    selected = None if pruned else after_verify
                found.append(self.assert_collected(token_ids, rows, selected))
            with self.subTest(pruned=pruned):
                self.assertTrue(torch.equal(*found))

    def test_prefill_seeds_agree(self):
        """Red when a layer's seed is another token, or not its exact probability, or
        another token is fed to the next layer."""
        dense = self.after_prefill(None)
        rotated = self.rotated
        packed = self.after_prefill(packed_draft(VOCAB))
        self.assertEqual(packed[0].shape, (ROWS, self.LAYERS))
        self.assert_same_topk(dense, packed)
        self.assertEqual(self.rotated, rotated)

    def test_prefill_probes_see_the_log_sum_exp(self):
        """Red when a NaN that did not win passes the probes of a packed step."""
        self.after_prefill(packed_draft(VOCAB))
        for probe in ("maybe_detect_nan", "maybe_detect_inf"):
            shapes = [tuple(v.shape) for name, v in self.probes if name == probe]
            self.assertEqual(shapes, [(ROWS, 1), (ROWS,)] * self.LAYERS)

    def test_selections_after_verify_agree(self):
        """Red when the accepted rows of the logits and of the ids come apart."""
        for pruned in (True, False):
            with self.subTest(pruned=pruned):
                dense = self.after_verify(None, pruned)
                rotated = self.rotated
                packed = self.after_verify(packed_draft(VOCAB), pruned)
                self.assertEqual(packed[0].shape, (ROWS, self.LAYERS))
                self.assert_same_topk(dense, packed)
                self.assertEqual(self.rotated, rotated)


if __name__ == "__main__":
    unittest.main()
