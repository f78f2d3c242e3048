"""Fields, row selection and consumers of a packed draft output."""

import unittest
from types import SimpleNamespace

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.layers.logits_processor import (
    LogitsProcessorOutput,
)
from sglang.srt.layers.vocab_parallel_draft import (
    VocabParallelDraft,
    draft_token_ids,
)
from sglang.srt.speculative.draft_confidence import selected_probability
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits.vocab_head_kit import head_of
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


def packed_output(rows: int) -> LogitsProcessorOutput:
    return LogitsProcessorOutput(
        next_token_logits=torch.arange(rows, dtype=torch.float32).unsqueeze(-1),
        logits_token_ids=torch.arange(rows) + 100,
        logits_logsumexp=torch.arange(rows, dtype=torch.float32) + 0.5,
    )


def packed_tree_output(rows: int, k: int = 4) -> LogitsProcessorOutput:
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, k, generator=generator).sort(descending=True).values
    return LogitsProcessorOutput(
        next_token_logits=logits,
        logits_token_ids=torch.arange(rows * k).view(rows, k) + 100,
        logits_logsumexp=logits.logsumexp(dim=1) + 1.0,
    )


def packed_draft(k: int) -> VocabParallelDraft:
    processor = SimpleNamespace(vocab_size=128, final_logit_softcapping=None)
    return VocabParallelDraft(processor, head_of(0, 2, 128, 64), None, "gloo", k=k)


class TestLostFields(CustomTestCase):
    def test_ids_of_a_whole_output(self):
        self.assertEqual(draft_token_ids(packed_output(3)).tolist(), [100, 101, 102])

    def test_missing_ids_raise(self):
        """Red when width-1 logits without ids become token 0."""
        output = packed_output(2)
        output.logits_token_ids = None
        with self.assertRaisesRegex(RuntimeError, "logits_token_ids"):
            draft_token_ids(output)

    def test_unsliced_ids_raise(self):
        """Red when logits are sliced and ids are not, unnoticed."""
        output = packed_output(4)
        output.next_token_logits = output.next_token_logits[:2]
        with self.assertRaisesRegex(RuntimeError, "other rows"):
            draft_token_ids(output)

    def test_a_lost_log_sum_exp_raises(self):
        """Red when one row's log-sum-exp would be broadcast over all, or none is there."""
        for lost in (None, torch.zeros(1)):
            output = packed_output(3)
            output.logits_logsumexp = lost
            with self.assertRaisesRegex(RuntimeError, "logits_logsumexp"):
                draft_token_ids(output)

    def test_rows_by_count_slice_and_index(self):
        """Red when one of the fields does not follow the rows."""
        index = torch.tensor([3, 1])
        for rows, kept in ((2, [0, 1]), (slice(1, 3), [1, 2]), (index, [3, 1])):
            fields = packed_output(4).draft_fields(rows)
            ids = [100 + row for row in kept]
            self.assertEqual(fields["logits_token_ids"].tolist(), ids)
            self.assertEqual(
                fields["logits_logsumexp"].tolist(), [row + 0.5 for row in kept]
            )

    def test_clone_is_detached(self):
        """Red when a replayed output aliases graph storage."""
        output = packed_output(4)
        fields = output.draft_fields(2, clone=True)
        output.logits_token_ids.fill_(7)
        output.logits_logsumexp.fill_(7)
        self.assertEqual(fields["logits_token_ids"].tolist(), [100, 101])
        self.assertEqual(fields["logits_logsumexp"].tolist(), [0.5, 1.5])

    def test_dense_output_has_no_fields(self):
        """Red when a dense output gains fields or fails."""
        output = LogitsProcessorOutput(next_token_logits=torch.zeros(2, 5))
        self.assertEqual(output.draft_fields(1), {})
        output.select_draft_fields(1)
        self.assertIsNone(output.logits_token_ids)


class TestConsumers(CustomTestCase):
    def test_which_path_an_output_took(self):
        """Red when a dense output is taken for packed, or lost ids for a dense one."""
        dense = LogitsProcessorOutput(next_token_logits=torch.zeros(2, 5))
        for k, output in ((1, packed_output(2)), (4, packed_tree_output(2))):
            packed = packed_draft(k)
            self.assertFalse(packed.is_packed(dense))
            self.assertTrue(packed.is_packed(output))
            for logits in (output.next_token_logits, None):
                lost = LogitsProcessorOutput(next_token_logits=logits)
                with self.assertRaisesRegex(RuntimeError, "logits_token_ids"):
                    packed.is_packed(lost)

    def test_tree_steps_hand_on_exact_probabilities(self):
        """Red when a tree's step hands on the chain's constant, one candidate, or a
        probability of other rows."""
        output = packed_tree_output(3)
        exact = torch.exp(
            output.next_token_logits - output.logits_logsumexp.unsqueeze(-1)
        )
        for select in (VocabParallelDraft.next_topk, VocabParallelDraft.seed_topk):
            topk_p, topk_index = select(output)
            self.assertTrue(torch.equal(topk_index, output.logits_token_ids))
            torch.testing.assert_close(topk_p, exact)
        rows = torch.tensor([2, 0])
        topk_p, topk_index = VocabParallelDraft.seed_topk(output, rows)
        self.assertTrue(torch.equal(topk_index, output.logits_token_ids[rows]))
        torch.testing.assert_close(topk_p, exact[rows])

    def test_lost_candidates_raise(self):
        """Red when candidates and their ids may differ in number unnoticed."""
        output = packed_tree_output(3)
        output.logits_token_ids = output.logits_token_ids[:, :3]
        with self.assertRaisesRegex(RuntimeError, "other rows"):
            draft_token_ids(output)

    def test_rows_of_a_tree_follow_in_all_fields(self):
        """Red when a field of a tree's output is sliced along its candidates."""
        index = torch.tensor([3, 1])
        output = packed_tree_output(4)
        for rows, kept in ((2, [0, 1]), (slice(1, 3), [1, 2]), (index, [3, 1])):
            fields = output.draft_fields(rows)
            expected = output.logits_token_ids[kept]
            self.assertTrue(torch.equal(fields["logits_token_ids"], expected))
            self.assertEqual(fields["logits_logsumexp"].shape, (2,))

    def test_next_topk(self):
        """Red when a selection forgets its ids or the constant 1.0."""
        topk_p, topk_index = VocabParallelDraft.next_topk(packed_output(2))
        self.assertEqual(topk_index.tolist(), [[100], [101]])
        self.assertEqual(topk_p.tolist(), [[1.0], [1.0]])

    def test_seed_topk_is_the_softmax_probability(self):
        """Red when the seed's probability is not over the whole vocabulary."""
        logits = torch.randn(6, 130, generator=torch.Generator().manual_seed(0))
        words = [
            shard_winner(logits[:, s : s + 65], valid_width=65, vocab_start=s)
            for s in (0, 65)
        ]
        ids, values, logsumexp = merge_shard_winners(torch.cat(words), rows=6)
        output = LogitsProcessorOutput(
            next_token_logits=values.unsqueeze(-1),
            logits_token_ids=ids,
            logits_logsumexp=logsumexp,
        )
        topk_p, topk_index = VocabParallelDraft.seed_topk(output)
        best_p, best_index = logits.double().softmax(-1).max(-1, keepdim=True)
        self.assertTrue(torch.equal(topk_index, best_index))
        torch.testing.assert_close(topk_p.double(), best_p, atol=2e-5, rtol=0)

    def test_probability_of_unusable_logsumexp_is_zero(self):
        """Red when NaN or infinity reaches what reads the probability."""
        inf, nan = float("inf"), float("nan")
        logits = torch.tensor([inf, -inf, 1.0, 2.0])
        logsumexp = torch.tensor([inf, -inf, nan, 2.0])
        self.assertEqual(
            selected_probability(logits, logsumexp).tolist(), [0.0, 0.0, 0.0, 1.0]
        )


if __name__ == "__main__":
    unittest.main()
