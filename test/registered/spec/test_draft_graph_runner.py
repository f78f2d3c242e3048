"""The EAGLE draft graph runner: the whole packed draft loop, replayed on the CPU."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.layers.dense_logsumexp import DenseLogsumexp, VocabShards
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative import eagle_draft_cuda_graph_runner as module
from sglang.srt.speculative import eagle_worker_v2
from sglang.srt.speculative.chain_confidence import ChainConfidence
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import graph_replay_kit as kit
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=15, suite="base-a-test-cpu")

STEPS = 4


def requests(rows: int, seed: int, steps: int = STEPS) -> ForwardBatch:
    generator = torch.Generator().manual_seed(seed)
    return ForwardBatch(
        forward_mode=ForwardMode.DECODE,
        batch_size=rows,
        input_ids=None,
        req_pool_indices=torch.arange(rows),
        seq_lens=torch.full((rows,), 9),
        seq_lens_cpu=torch.full((rows,), 9),
        seq_lens_sum=9 * rows,
        out_cache_loc=torch.arange(rows * steps),
        positions=torch.randint(5, 50, (rows,), generator=generator),
        capture_hidden_mode=CaptureHiddenMode.LAST,
        spec_info=EagleDraftInput(
            topk_p=torch.ones(rows, 1),
            topk_index=torch.randint(kit.VOCAB, (rows, 1), generator=generator),
            hidden_states=torch.randn(rows, kit.HIDDEN, generator=generator),
            capture_hidden_mode=CaptureHiddenMode.LAST,
        ),
    )


def dense_chain(model: kit.DraftModel, batch: ForwardBatch, steps: int) -> torch.Tensor:
    """Draft tokens ``[rows, steps]``: the argmax of whole rows, step after step."""
    tokens, states = batch.spec_info.topk_index.flatten(), batch.spec_info.hidden_states
    chain = [tokens]
    for step in range(steps - 1):
        states = model.states(tokens, batch.positions + step, states)
        tokens = (states @ model.weight.T).argmax(-1)
        chain.append(tokens)
    return torch.stack(chain, dim=1)


def chain_probability(
    model: kit.DraftModel, batch: ForwardBatch, steps: int
) -> torch.Tensor:
    """Softmax probability of the chain's tokens after the first, FP64
    ``[rows, steps - 1]``."""
    tokens, states = batch.spec_info.topk_index.flatten(), batch.spec_info.hidden_states
    columns = []
    for step in range(steps - 1):
        states = model.states(tokens, batch.positions + step, states)
        probability = (states @ model.weight.T).double().softmax(-1)
        best, tokens = probability.max(-1)
        columns.append(best)
    return torch.stack(columns, dim=1)


def draft_worker(model: kit.DraftModel, steps: int) -> eagle_worker_v2.EagleDraftWorker:
    """A real draft worker with what ``draft_forward`` reads, and no server around it."""
    worker = eagle_worker_v2.EagleDraftWorker.__new__(eagle_worker_v2.EagleDraftWorker)
    runner = kit.model_runner(model)
    runner.forward = lambda batch: SimpleNamespace(
        logits_output=model(batch.input_ids, batch.positions, batch)
    )
    worker.draft_runner = runner
    worker.draft_attn_backend = runner.draft_attn_backend = kit.AttentionStub()
    worker.topk, worker.hot_token_id = 1, None
    worker.speculative_num_steps = steps
    worker.speculative_num_draft_tokens = steps + 1
    worker.index_share_for_mtp_iteration = False
    worker.seed_dsa_topk_from_draft_extend = False
    size = max(kit.CAPTURED_SIZES)
    worker._topk1_parents_prealloc = torch.zeros(size, steps, dtype=torch.int64)
    worker._topk1_score_indices_prealloc = torch.zeros(size, steps, dtype=torch.int64)
    worker.vocab_parallel_draft = model.packed
    return worker


class DraftGraphRunnerCases:
    writes_columns = False

    def setUp(self):
        # On CUDA the chain is written column by column into one buffer.
        self.enterContext(
            patch.object(eagle_worker_v2, "_is_cuda", self.writes_columns)
        )
        self.configure(STEPS)
        self.model = kit.DraftModel()
        self.worker = draft_worker(self.model, STEPS)
        self.runner = self.captured(STEPS)

    def configure(self, steps):
        self.enterContext(
            kit.replay_stub(
                module,
                speculative_num_steps=steps,
                speculative_num_draft_tokens=steps + 1,
                speculative_eagle_topk=1,
            )
        )

    def captured(self, steps):
        runner_class = kit.captures_each_size(module.EAGLEDraftCudaGraphRunner)
        return runner_class(self.worker, speculative_num_steps=steps)

    def poison(self):
        buffers = self.runner.buffers
        buffers.hidden_states.fill_(float("nan"))
        buffers.topk_p.fill_(1e30)
        buffers.topk_index.fill_(2**40)
        buffers.positions.fill_(-(2**40))
        for _, output in self.runner.backend.captured.values():
            output[2].fill_(-(2**40))

    def check(self, rows, seed):
        batch = requests(rows, seed)
        expected = dense_chain(self.model, requests(rows, seed), STEPS)
        _, _, draft_tokens, draft_probs = self.runner.execute(batch)
        self.assertEqual(draft_tokens.tolist(), expected.tolist())
        self.assertIsNone(draft_probs)
        # What the runner advances step by step it takes back at the end.
        self.assertEqual(
            batch.positions.tolist(), requests(rows, seed).positions.tolist()
        )

    def test_five_requests_in_a_graph_of_eight(self):
        """Red when padding reaches a real row, a column or a position is off."""
        for seed in range(3):
            self.poison()
            self.check(5, seed)

    def test_batches_of_other_sizes_in_turn(self):
        """Red when rows of a larger batch are left over in a smaller one."""
        for seed, rows in enumerate((8, 3, 1, 0, 2, 8, 7)):
            with self.subTest(rows=rows):
                self.check(rows, seed)

    def test_many_replays_of_one_shape(self):
        """Red when positions drift by a step with every replay."""
        for seed in range(20):
            self.check(8, seed)

    def test_lost_ids_stop_the_capture(self):
        """Red when a packed step without ids drafts token 0 instead of failing."""

        def without_ids(batch):
            output = self.model(batch.input_ids, batch.positions, batch)
            output.logits_token_ids = None
            return SimpleNamespace(logits_output=output)

        self.worker.draft_runner.forward = without_ids
        with self.assertRaisesRegex(RuntimeError, "logits_token_ids"):
            self.runner.capture()

    def test_runners_of_other_step_counts_take_turns(self):
        """Red when a swap of the steps leaves a column, position or sink behind."""
        swapped = {STEPS: self.runner}
        for steps in (2, 1):
            self.configure(steps)
            self.worker.speculative_num_steps = steps
            swapped[steps] = self.captured(steps)
        for seed, steps in enumerate((4, 2, 1, 4, 1, 2, 4)):
            self.worker.speculative_num_steps = steps
            for rows in (5, 8):
                with self.subTest(steps=steps, rows=rows):
                    batch = requests(rows, seed, steps)
                    expected = dense_chain(self.model, batch, steps)
                    tokens = swapped[steps].execute(batch)[2]
                    self.assertEqual(tokens.tolist(), expected.tolist())

    def collects(self, packed: bool) -> ChainConfidence:
        """Captures again, with probabilities collected."""
        confidence = ChainConfidence(max(kit.CAPTURED_SIZES), STEPS, "cpu")
        self.worker.draft_confidence = confidence
        if not packed:
            self.worker.vocab_parallel_draft = None
            processor = self.model.logits_processor
            processor.vocab_parallel_draft = None
            processor.draft_logsumexp = DenseLogsumexp(VocabShards())
        self.runner.capture()
        return confidence

    def test_captured_loops_leave_their_probabilities(self):
        """Red when a step's probability goes to another column or row, is left over from
        a larger batch, is that of a padding row, or lives in the graph's storage."""
        # SGLang's own kernel writes the columns of a dense loop, on a GPU only.
        for packed in (True,) if self.writes_columns else (True, False):
            confidence = self.collects(packed)
            earlier = []
            for seed, rows in enumerate((5, 8, 3, 1, 0)):
                self.poison()
                batch = requests(rows, seed)
                wanted = chain_probability(self.model, requests(rows, seed), STEPS)
                confidence.begin(rows, STEPS, replays=True)
                self.runner.execute(batch)
                got = confidence.take(rows, STEPS, torch.full((rows, 1), 0.25))
                earlier.append((got, wanted))
            for got, wanted in earlier:
                with self.subTest(packed=packed, rows=len(got)):
                    self.assertEqual(got[:, 0].tolist(), [0.25] * len(got))
                    error = (got[:, 1:].double() - wanted).abs()
                    self.assertEqual(got.shape, (len(wanted), STEPS))
                    self.assertTrue(bool((error <= 2e-5).all()))


class TestDraftGraphRunner(DraftGraphRunnerCases, CustomTestCase):
    """Tokens joined at the end, as on a CPU."""

    def test_the_dense_loop_drafts_the_same(self):
        """Red when packed and dense loops leave other tokens or positions."""
        self.worker.vocab_parallel_draft = None
        self.model.logits_processor.vocab_parallel_draft = None
        self.runner.capture()
        self.check(5, 1)


class TestDraftGraphRunnerColumns(DraftGraphRunnerCases, CustomTestCase):
    """Tokens written into their columns step by step, as on CUDA."""

    writes_columns = True


if __name__ == "__main__":
    unittest.main()
