"""The EAGLE draft-extend graph runner on packed draft outputs, replayed on the CPU."""

import unittest
from types import SimpleNamespace

import torch

from sglang.srt.layers.dense_logsumexp import DenseLogsumexp, VocabShards
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.speculative import eagle_draft_extend_cuda_graph_runner as module
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import graph_replay_kit as kit
from sglang.test.kits.shard_winner_kit import reference_selection
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

WIDTH = 4


def requests(rows: int, seed: int) -> ForwardBatch:
    generator = torch.Generator().manual_seed(seed)
    tokens = rows * WIDTH
    return ForwardBatch(
        forward_mode=ForwardMode.DRAFT_EXTEND_V2,
        batch_size=rows,
        input_ids=torch.randint(kit.VOCAB, (tokens,), generator=generator),
        req_pool_indices=torch.arange(rows),
        seq_lens=torch.full((rows,), 9),
        seq_lens_cpu=torch.full((rows,), 9),
        seq_lens_sum=9 * rows,
        out_cache_loc=torch.arange(tokens),
        positions=torch.arange(tokens) % WIDTH + 5,
        spec_info=EagleDraftExtendInput(
            hidden_states=torch.randn(tokens, kit.HIDDEN, generator=generator),
            num_correct_drafts=torch.ones(rows, dtype=torch.int32),
            num_accept_tokens=torch.full((rows,), 2, dtype=torch.int32),
            num_tokens_per_req=WIDTH,
        ),
    )


def accepted_rows(rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    last = torch.randint(WIDTH, (rows,), generator=generator)
    return torch.arange(rows) * WIDTH + last


class TestDraftExtendGraphRunner(CustomTestCase):
    def setUp(self):
        self.enterContext(
            kit.replay_stub(
                module,
                speculative_num_steps=WIDTH - 1,
                speculative_num_draft_tokens=WIDTH,
                speculative_eagle_topk=1,
            )
        )
        self.model = kit.DraftModel()
        worker = SimpleNamespace(
            draft_runner=kit.model_runner(self.model),
            draft_extend_attn_backend=kit.AttentionStub(),
            speculative_algorithm=SpeculativeAlgorithm.EAGLE,
            seed_dsa_topk_from_draft_extend=False,
            hot_token_id=None,
        )
        runner_class = kit.captures_each_size(module.EAGLEDraftExtendCudaGraphRunner)
        self.runner = runner_class(worker)

    def execute(self, rows, seed):
        return self.runner.execute(requests(rows, seed), accepted_rows(rows, seed))

    def expected(self, rows, seed):
        """Selection and hidden states of the dense rule, without a graph or padding."""
        batch, selected = requests(rows, seed), accepted_rows(rows, seed)
        states = self.model.states(
            batch.input_ids, batch.positions, batch.spec_info.hidden_states
        )[selected]
        return reference_selection(states @ self.model.weight.T), states

    def assert_rows(self, output, expected):
        selection, states = expected
        logits = output.next_token_logits
        self.assertEqual(logits.shape, (states.shape[0], 1))
        kit.assert_selection(output, selection)
        self.assertTrue(torch.equal(output.hidden_states, states))

    def poison(self):
        """What an earlier replay may have left in rows that are padding now."""
        buffers = self.runner.buffers
        buffers.hidden_states[::3] = float("nan")
        buffers.hidden_states[1::3] = 1e30
        buffers.hidden_states[2::3] = -float("inf")
        buffers.next_token_logits_buffer.fill_(float("nan"))
        for _, output in self.runner.backend.captured.values():
            kit.poison_output(output)

    def test_five_requests_in_a_graph_of_eight(self):
        """Red when a field is not unpadded, or padding reaches a real row."""
        for seed in range(3):
            self.poison()
            output = self.execute(5, seed)
            self.assertEqual(self.runner.bs, 8)
            self.assert_rows(output, self.expected(5, seed))

    def test_batches_of_other_sizes_in_turn(self):
        """Red when rows of a larger batch are left over in a smaller one."""
        for seed, rows in enumerate((8, 3, 1, 0, 2, 8, 7)):
            with self.subTest(rows=rows):
                self.assert_rows(self.execute(rows, seed), self.expected(rows, seed))

    def test_a_result_outlives_the_next_replay(self):
        """Red when a field of the result is graph storage (not cloned)."""
        first = self.execute(5, 1)
        expected = self.expected(5, 1)
        self.execute(7, 2)
        self.poison()
        self.assert_rows(first, expected)

    def test_the_worker_reads_the_real_rows(self):
        """Red when the consumer gets other rows than the requests."""
        self.execute(8, 3)
        output = self.execute(5, 4)
        topk_p, topk_index = self.model.packed.next_topk(output)
        ids = self.expected(5, 4)[0].token_ids
        self.assertTrue(torch.equal(topk_index, ids.unsqueeze(-1)))
        self.assertEqual(topk_p.tolist(), [[1.0]] * 5)

    def test_a_dense_output_stays_as_it_was(self):
        """Red when the dense path gains a field or a copy of its logits."""
        self.model.logits_processor.vocab_parallel_draft = None
        self.runner.capture()
        output = self.execute(5, 1)
        self.assertIsNone(output.logits_token_ids)
        self.assertIsNone(output.logits_logsumexp)
        self.assertEqual(output.next_token_logits.shape, (5, kit.VOCAB))

    def test_a_dense_output_carries_its_log_sum_exp(self):
        """Red when the replay drops it where probabilities are collected, keeps padding
        rows, or hands on graph storage."""
        processor = self.model.logits_processor
        processor.vocab_parallel_draft = None
        processor.draft_logsumexp = DenseLogsumexp(VocabShards())
        self.runner.capture()
        output = self.execute(5, 1)
        selection, _ = self.expected(5, 1)
        self.execute(7, 2)
        error = output.logits_logsumexp.double() - selection.logsumexp
        self.assertEqual(output.logits_logsumexp.shape, (5,))
        self.assertLess(error.abs().max().item(), 2e-5)
        self.assertIsNone(output.logits_token_ids)


if __name__ == "__main__":
    unittest.main()
