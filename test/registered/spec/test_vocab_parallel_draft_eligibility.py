"""Which drafts are eligible for the packed path, and how ranks agree on it."""

import dataclasses
import unittest
from types import SimpleNamespace

from sglang.srt.layers.vocab_parallel_draft_eligibility import (
    DenseReason,
    DraftFacts,
    dense_reason,
    valid_width,
)
from sglang.srt.layers.vocab_parallel_draft_transport import agree
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits.vocab_head_kit import head_of
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

# Every reason that dense_reason itself can give, with one fact that gives it.
REASON_OF_FACT = {
    DenseReason.UNSUPPORTED_WORKER: {"has_packed_sites": False},
    DenseReason.PIPELINE_PARALLEL: {"pp_size": 2},
    DenseReason.DP_LM_HEAD: {"dp_lm_head": True},
    DenseReason.LM_HEAD_ALL_TO_ALL: {"lm_head_all_to_all": True},
    DenseReason.DP_ATTENTION: {"dp_attention": True},
    DenseReason.TP1: {"tp_size": 1},
    DenseReason.TOPK: {"topk": 17},
    DenseReason.REJECTION_SAMPLING: {"rejection_sampling": True},
    DenseReason.SAMPLED_DRAFT: {"sampled_draft": True},
    DenseReason.CANDIDATE_SEARCH: {"candidate_search": True},
    DenseReason.WHOLE_VOCABULARY: {"whole_vocabulary": True},
    DenseReason.MEGAKERNEL: {"megakernel": True},
    DenseReason.TOKEN_MAP: {"token_map": True},
    DenseReason.NO_GATHER: {"gathers": False},
    DenseReason.ADDED_VOCAB: {"added_vocab": True},
    DenseReason.UNSUPPORTED_HEAD: {"supported_head": False},
    DenseReason.NONPOSITIVE_SCALE: {"logit_scale": 0.0},
    DenseReason.UNSUPPORTED_DEVICE: {"device": "npu"},
    DenseReason.SOFTCAP_KERNEL: {"softcap": 30.0, "device": "cuda"},
}
# Found out later: by comparing the ranks, and by the table of auto.
LATER_REASONS = {
    DenseReason.RANK_DISAGREEMENT,
    DenseReason.NOT_MEASURED,
    DenseReason.MEASURED_SLOWER,
}

# Flag, winners a row and vocabulary of a packed verdict.
TERMS = ("on", 1, 1003)


class TestEligibility(CustomTestCase):
    def test_eligible(self):
        """Red when a default fact of an eligible draft gains a reason."""
        self.assertIsNone(dense_reason(DraftFacts()))
        self.assertIsNone(dense_reason(DraftFacts(logit_scale=0.5)))
        self.assertIsNone(dense_reason(DraftFacts(topk=16)))
        self.assertIsNone(dense_reason(DraftFacts(softcap=30.0, device="cpu")))

    def test_each_reason(self):
        """Red when a fact stops giving its reason."""
        for reason, fact in REASON_OF_FACT.items():
            with self.subTest(reason=reason.value):
                self.assertIs(dense_reason(DraftFacts(**fact)), reason)

    def test_every_reason_is_reachable(self):
        """Red when a reason is added without a fact that gives it."""
        self.assertEqual(set(DenseReason), set(REASON_OF_FACT) | LATER_REASONS)

    def test_every_fact_matters(self):
        """Red when a fact is collected that no reason reads."""
        names = {name for fact in REASON_OF_FACT.values() for name in fact}
        names |= {"mode", "gathers_rows"}  # say whether there is a table to look at
        self.assertEqual({f.name for f in dataclasses.fields(DraftFacts)}, names)

    def test_what_the_table_of_auto_does_not_hold(self):
        """Red when auto looks a tree up among chains, or lets a data-parallel rank choose
        by its own rows while the others have other rows (a hang)."""
        for fact in ({"topk": 4}, {"gathers_rows": True}):
            facts = DraftFacts(mode="auto", **fact)
            self.assertIs(dense_reason(facts), DenseReason.NOT_MEASURED)
            self.assertIsNone(dense_reason(DraftFacts(**fact)))
        self.assertIsNone(dense_reason(DraftFacts(mode="auto")))

    def test_ranks_that_disagree_go_dense_together(self):
        """Red when a rank acts on its own verdict, or pushes alone; also when nodes that
        were launched with other flags draft packed apart."""

        def verdict(mine, pushes, *others):
            group = SimpleNamespace(all_gather_object=lambda x: [x, *others])
            return agree(mine, pushes, group, TERMS)

        disagree = DenseReason.RANK_DISAGREEMENT
        unsupported = DenseReason.UNSUPPORTED_HEAD
        self.assertEqual(
            verdict(None, True, ("unsupported_head", True)), (disagree, True)
        )
        self.assertEqual(verdict(unsupported, True, (TERMS, True)), (disagree, True))
        self.assertEqual(verdict(None, True, (TERMS, True)), (None, True))
        self.assertEqual(verdict(None, True, (TERMS, False)), (None, False))
        self.assertEqual(verdict(None, False, (TERMS, True)), (None, False))
        topk = DenseReason.TOPK
        self.assertEqual(verdict(topk, False, ("topk", False)), (topk, False))
        for terms in (("auto", 1, 1003), ("on", 4, 1003), ("on", 1, 1000)):
            self.assertEqual(verdict(None, True, (terms, True)), (disagree, True))

    def test_valid_width(self):
        """Red when padding columns or an empty shard count as tokens."""
        widths = [valid_width(head_of(r, 4, 130, 64), 130) for r in range(4)]
        self.assertEqual(widths, [64, 64, 2, 0])
        self.assertEqual(valid_width(head_of(1, 2, 128, 64), 100), 36)


if __name__ == "__main__":
    unittest.main()
