"""Eligibility, lost fields and row selection of the vocab-parallel draft."""

import dataclasses
import unittest
from types import SimpleNamespace

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.vocab_parallel_draft import (
    VocabParallelDraft,
    _agree,
    draft_token_ids,
)
from sglang.srt.layers.vocab_parallel_draft_eligibility import (
    DenseReason,
    DraftFacts,
    dense_reason,
    valid_width,
)
from sglang.srt.speculative.draft_confidence import selected_probability
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=5, suite="base-a-test-cpu")

# Every reason that dense_reason itself can give, with one fact that gives it.
REASON_OF_FACT = {
    DenseReason.UNSUPPORTED_WORKER: {"has_packed_sites": False},
    DenseReason.PIPELINE_PARALLEL: {"pp_size": 2},
    DenseReason.DP_LM_HEAD: {"dp_lm_head": True},
    DenseReason.LM_HEAD_ALL_TO_ALL: {"lm_head_all_to_all": True},
    DenseReason.DP_ATTENTION: {"dp_attention": True},
    DenseReason.TP1: {"tp_size": 1},
    DenseReason.TOPK: {"topk": 4},
    DenseReason.REJECTION_SAMPLING: {"rejection_sampling": True},
    DenseReason.TOKEN_MAP: {"token_map": True},
    DenseReason.NO_GATHER: {"gathers": False},
    DenseReason.ADDED_VOCAB: {"added_vocab": True},
    DenseReason.UNSUPPORTED_HEAD: {"supported_head": False},
    DenseReason.NONPOSITIVE_SCALE: {"logit_scale": 0.0},
    DenseReason.UNSUPPORTED_DEVICE: {"device": "npu"},
    DenseReason.SOFTCAP_KERNEL: {"softcap": 30.0, "device": "cuda"},
    DenseReason.NOT_MEASURED: {"mode": "auto"},
}


def packed_output(rows: int) -> LogitsProcessorOutput:
    return LogitsProcessorOutput(
        next_token_logits=torch.arange(rows, dtype=torch.float32).unsqueeze(-1),
        logits_token_ids=torch.arange(rows) + 100,
        logits_logsumexp=torch.arange(rows, dtype=torch.float32) + 0.5,
    )


def head_of(rank: int, tp: int, vocab_size: int, padded: int) -> SimpleNamespace:
    start = min(rank * padded, vocab_size)
    end = min(start + padded, vocab_size)
    return SimpleNamespace(
        tp_size=tp,
        num_embeddings=vocab_size,
        org_vocab_size=vocab_size,
        shard_indices=SimpleNamespace(
            num_elements_padded=padded,
            padded_org_vocab_start_index=rank * padded,
            org_vocab_start_index=start,
            org_vocab_end_index=end,
        ),
    )


class TestEligibility(CustomTestCase):
    def test_eligible(self):
        """Red when a default fact of an eligible draft gains a reason."""
        self.assertIsNone(dense_reason(DraftFacts()))
        self.assertIsNone(dense_reason(DraftFacts(logit_scale=0.5)))
        self.assertIsNone(dense_reason(DraftFacts(softcap=30.0, device="cpu")))

    def test_each_reason(self):
        """Red when a fact stops giving its reason."""
        for reason, fact in REASON_OF_FACT.items():
            with self.subTest(reason=reason.value):
                self.assertIs(dense_reason(DraftFacts(**fact)), reason)

    def test_every_reason_is_reachable(self):
        """Red when a reason is added without a fact that gives it."""
        self.assertEqual(
            set(DenseReason), set(REASON_OF_FACT) | {DenseReason.RANK_DISAGREEMENT}
        )

    def test_every_fact_matters(self):
        """Red when a fact is collected that no reason reads."""
        names = {name for fact in REASON_OF_FACT.values() for name in fact}
        self.assertEqual({f.name for f in dataclasses.fields(DraftFacts)}, names)

    def test_ranks_that_disagree_go_dense_together(self):
        """Red when a rank acts on its own verdict."""
        for verdicts in ([None, "unsupported_head"], ["unsupported_head", None]):
            group = SimpleNamespace(all_gather_object=lambda mine, v=verdicts: v)
            self.assertIs(_agree(None, group), DenseReason.RANK_DISAGREEMENT)
        group = SimpleNamespace(all_gather_object=lambda mine: [mine, mine])
        self.assertIsNone(_agree(None, group))
        self.assertIs(_agree(DenseReason.TOPK, group), DenseReason.TOPK)

    def test_valid_width(self):
        """Red when padding columns or an empty shard count as tokens."""
        widths = [valid_width(head_of(r, 4, 130, 64), 130) for r in range(4)]
        self.assertEqual(widths, [64, 64, 2, 0])
        self.assertEqual(valid_width(head_of(1, 2, 128, 64), 100), 36)


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
    def setUp(self):
        self.packed = VocabParallelDraft.__new__(VocabParallelDraft)

    def test_next_topk1(self):
        """Red when a step forgets the column, the positions or the constant 1.0."""
        positions = torch.tensor([5, 9])
        draft_tokens = torch.zeros((2, 3), dtype=torch.int64)
        topk_p, topk_index = self.packed.next_topk1(
            packed_output(2), positions, draft_tokens, 1
        )
        self.assertEqual(topk_index.tolist(), [[100], [101]])
        self.assertEqual(topk_p.tolist(), [[1.0], [1.0]])
        self.assertEqual(positions.tolist(), [6, 10])
        self.assertEqual(draft_tokens.tolist(), [[0, 100, 0], [0, 101, 0]])

    def test_seed_topk1_is_the_softmax_probability(self):
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
        topk_p, topk_index = self.packed.seed_topk1(output)
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
