"""Probabilities from a draft worker's buffers to its result on the CPU."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.layers.dense_logsumexp import dense_logsumexp
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers import utils
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.speculative import chain_confidence_install as install
from sglang.srt.speculative import eagle_worker_v2 as module
from sglang.srt.speculative.chain_confidence import ChainConfidence
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

ROWS, STEPS = 3, 2


def output_of(rows: int) -> LogitsProcessorOutput:
    """A dense output whose first token has probability ``1 / (row + 2)``."""
    logits = torch.zeros(rows, 2)
    logits[:, 1] = torch.arange(1, rows + 1).log()
    return LogitsProcessorOutput(logits, logits_logsumexp=dense_logsumexp(logits))


class TestBuffers(CustomTestCase):
    """The buffer of captured graphs, and that of an eager chain."""

    def setUp(self):
        self.confidence = ChainConfidence(max_rows=8, max_steps=STEPS, device="cpu")

    def record(self, rows: int) -> None:
        token_ids = torch.zeros(rows, 1, dtype=torch.int64)
        self.confidence.record(1, output_of(rows), token_ids)

    def taken(self, rows: int) -> list:
        column = self.confidence.take(rows, STEPS)[:, 1]
        return [round(1 / value) for value in column.tolist()]

    def test_padding_rows_of_an_eager_chain(self):
        """Red when a batch that data-parallel ranks padded fails, or a padding row is
        reported."""
        self.confidence.begin(2, STEPS, replays=False)
        self.record(5)
        self.assertEqual(self.taken(2), [2, 3])

    def test_a_capture_after_an_eager_chain(self):
        """Red when a graph that is captured later keeps an eager chain's buffer, which
        its replays would write while another one is read."""
        self.confidence.begin(2, STEPS, replays=False)
        self.confidence.take(2, STEPS)
        self.record(4)
        self.confidence.begin(4, STEPS, replays=True)
        self.assertEqual(self.taken(4), [2, 3, 4, 5])

    def test_the_largest_batch_fits(self):
        """Red when a replay or an admitted batch has more rows than the buffer."""
        for captured, running, rows in ((16, 8, 16), (8, 48, 48), (None, None, 1)):
            decode = SimpleNamespace(max_bs=captured)
            graph = SimpleNamespace(cuda_graph_config=SimpleNamespace(decode=decode))
            schedule = SimpleNamespace(max_running_requests=running)
            with (
                patch.object(install, "get_exec", lambda: SimpleNamespace(graph=graph)),
                patch.object(install, "get_schedule", lambda: schedule),
            ):
                self.assertEqual(install._max_rows(), rows)


class TestCopyToCpu(CustomTestCase):
    def test_both_are_copied_with_the_accept_lengths(self):
        """Red when the scheduler's sums would wait for the device at every verify."""
        copied = []
        result = GenerationBatchResult(
            next_token_ids=torch.zeros(ROWS, dtype=torch.int64),
            accept_lens=torch.ones(ROWS, dtype=torch.int64),
            copy_done=SimpleNamespace(record=lambda: None),
            draft_probability=torch.rand(ROWS, STEPS),
            next_draft_probability=torch.rand(ROWS, 1),
        )
        sent = (result.draft_probability, result.next_draft_probability)
        with patch.object(utils, "_async_d2h", lambda x: copied.append(x) or x.clone()):
            result.copy_to_cpu(return_logprob=False, return_hidden_states=False)
        for before, after in zip(
            sent, (result.draft_probability, result.next_draft_probability)
        ):
            self.assertTrue(any(tensor is before for tensor in copied))
            self.assertIsNot(after, before)
            self.assertTrue(torch.equal(after, before))


def worker(**attributes) -> module.EAGLEWorkerV2:
    """A worker with what these methods read, and no server around it."""
    built = module.EAGLEWorkerV2.__new__(module.EAGLEWorkerV2)
    for name, value in attributes.items():
        setattr(built, name, value)
    return built


class TestSkippedExtend(CustomTestCase):
    def stub(self, draft_confidence):
        draft = SimpleNamespace(draft_runner=None, draft_confidence=draft_confidence)
        result = SimpleNamespace(
            next_draft_input=SimpleNamespace(draft_probability=None)
        )
        batch = SimpleNamespace(seq_lens=torch.zeros(ROWS, dtype=torch.int64))
        with patch.object(
            module, "get_draft_recurrent_hidden_state_spec", lambda _: (None, None)
        ):
            worker(
                _draft_worker=draft, topk=1, device="cpu"
            )._stub_skipped_draft_extend(batch, result)
        return result.next_draft_input

    def test_nothing_is_known_of_a_stub(self):
        """Red when rounds of zero steps that leave the extend out end in a lost seed,
        in a field that shares memory with topk_p, or make one that nobody asked for."""
        draft_input = self.stub(draft_confidence=object())
        self.assertEqual(draft_input.draft_probability.tolist(), [[0.0]] * ROWS)
        draft_input.draft_probability.fill_(1.0)
        self.assertEqual(draft_input.topk_p.tolist(), [[0.0]] * ROWS)
        self.assertIsNone(self.stub(draft_confidence=None).draft_probability)


class TestCoordinatedVerification(CustomTestCase):
    def test_the_result_holds_the_chain_that_was_verified(self):
        """Red when data-parallel ranks that verify beside others' prefills report
        nothing."""
        chain = torch.rand(ROWS, STEPS)
        verify_input = SimpleNamespace(draft_probability=chain)
        draft = SimpleNamespace(
            parallel_layout=SimpleNamespace(local_dp=False),
            draft=lambda batch: verify_input,
            _draft_extend_for_decode=lambda batch, result: None,
        )
        built = worker(_draft_worker=draft)
        built.verify = lambda batch, grammar_barrier: SimpleNamespace(new_seq_lens=None)
        batch = SimpleNamespace(
            forward_mode=SimpleNamespace(is_extend=lambda: False),
            spec_info=SimpleNamespace(),
            global_num_tokens=[ROWS, 0],
            draft_global_num_tokens=None,
        )
        plan = SimpleNamespace(apply=lambda *_, **__: None)
        contexts = (
            "draft_tp_context",
            "speculative_moe_backend_context",
            "speculative_moe_a2a_backend_context",
            "spec_stage_span",
        )
        for name in contexts:
            self.enterContext(patch.object(module, name, unittest.mock.MagicMock()))
        self.enterContext(
            patch.object(
                module, "get_parallel", lambda: SimpleNamespace(attn_dp_rank=0)
            )
        )
        result = built._forward_dp_spec_prefill_coordination(
            batch, plan, None, None, None
        )
        self.assertIs(result.draft_probability, chain)


if __name__ == "__main__":
    unittest.main()
