"""Eligibility, lost fields and row selection of the vocab-parallel draft."""

import dataclasses
import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.layers.logits_processor import (
    LogitsProcessor,
    LogitsProcessorOutput,
)
from sglang.srt.layers.vocab_parallel_draft import (
    VocabParallelDraft,
    draft_token_ids,
)
from sglang.srt.layers.vocab_parallel_draft_eligibility import (
    DenseReason,
    DraftFacts,
    collect_facts,
    dense_reason,
    valid_width,
)
from sglang.srt.layers.vocab_parallel_draft_install import (
    _agree,
    _trial_reason,
    first_reason,
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

        def agree(mine, pushes, *others):
            group = SimpleNamespace(all_gather_object=lambda x: [x, *others])
            return _agree(mine, pushes, group, TERMS)

        disagree = DenseReason.RANK_DISAGREEMENT
        unsupported = DenseReason.UNSUPPORTED_HEAD
        self.assertEqual(
            agree(None, True, ("unsupported_head", True)), (disagree, True)
        )
        self.assertEqual(agree(unsupported, True, (TERMS, True)), (disagree, True))
        self.assertEqual(agree(None, True, (TERMS, True)), (None, True))
        self.assertEqual(agree(None, True, (TERMS, False)), (None, False))
        self.assertEqual(agree(None, False, (TERMS, True)), (None, False))
        topk = DenseReason.TOPK
        self.assertEqual(agree(topk, False, ("topk", False)), (topk, False))
        for terms in (("auto", 1, 1003), ("on", 4, 1003), ("on", 1, 1000)):
            self.assertEqual(agree(None, True, (terms, True)), (disagree, True))

    def test_valid_width(self):
        """Red when padding columns or an empty shard count as tokens."""
        widths = [valid_width(head_of(r, 4, 130, 64), 130) for r in range(4)]
        self.assertEqual(widths, [64, 64, 2, 0])
        self.assertEqual(valid_width(head_of(1, 2, 128, 64), 100), 36)


class TestFacts(CustomTestCase):
    """What is read from a worker, its model and the configuration."""

    GROUP = SimpleNamespace(world_size=2, rank_in_group=1)

    def processor(self, **attributes) -> LogitsProcessor:
        processor = LogitsProcessor.__new__(LogitsProcessor)
        torch.nn.Module.__init__(processor)
        defaults = dict(
            vocab_size=128,
            logit_scale=None,
            final_logit_softcapping=None,
            do_tensor_parallel_all_gather=True,
        )
        for name, value in (defaults | attributes).items():
            setattr(processor, name, value)
        return processor

    def runner(self, processor=None, head=None, **model):
        model = SimpleNamespace(
            lm_head=head or head_of(1, 2, 128, 64),
            logits_processor=processor or self.processor(),
            **model,
        )
        return SimpleNamespace(model=model, device="cpu")

    def worker(self, *runners, **attributes):
        return SimpleNamespace(
            vocab_parallel_draft=None, draft_runners=list(runners), **attributes
        )

    def facts(self, *args, **changed):
        (facts,) = self.all_facts(*args, **changed)
        return facts

    def all_facts(self, processor=None, head=None, spec=(), parallel=(), **changed):
        worker = changed.get("worker", self.worker(self.runner(processor, head)))
        config = dict(
            speculative_vocab_parallel_draft="on",
            speculative_eagle_topk=1,
            speculative_use_rejection_sampling=False,
        )
        sizes = dict(
            pp_size=1,
        )
        module = "sglang.srt.layers.vocab_parallel_draft_eligibility"
        with (
            patch(f"{module}.get_spec", lambda: SimpleNamespace(**config | dict(spec))),
            patch(
                f"{module}.get_parallel",
                lambda: SimpleNamespace(**sizes | dict(parallel)),
            ),
        ):
            return collect_facts(worker, changed.get("group", self.GROUP))

    def test_an_eligible_worker(self):
        """Red when a fact of an ordinary draft is read wrong."""
        self.assertEqual(self.facts(), DraftFacts())

    def test_configuration(self):
        """Red when a fact is read from another argument than its own."""
        auto = {"speculative_vocab_parallel_draft": "auto"}
        self.assertEqual(self.facts(spec=auto), DraftFacts(mode="auto"))
        cases = {
            DenseReason.TOPK: {"spec": {"speculative_eagle_topk": 17}},
            DenseReason.REJECTION_SAMPLING: {
                "spec": {"speculative_use_rejection_sampling": True}
            },
            DenseReason.PIPELINE_PARALLEL: {"parallel": {"pp_size": 2}},
            DenseReason.TP1: {"group": SimpleNamespace(world_size=1, rank_in_group=0)},
        }
        for reason, changed in cases.items():
            with self.subTest(reason=reason.value):
                self.assertIs(dense_reason(self.facts(**changed)), reason)

    def test_processor(self):
        """Red when scale, softcap or the gather is read wrong."""
        facts = self.facts(self.processor(logit_scale=-0.5))
        self.assertIs(dense_reason(facts), DenseReason.NONPOSITIVE_SCALE)
        facts = self.facts(self.processor(do_tensor_parallel_all_gather=False))
        self.assertIs(dense_reason(facts), DenseReason.NO_GATHER)
        facts = self.facts(self.processor(do_tensor_parallel_all_gather_dp_attn=True))
        self.assertTrue(facts.gathers_rows)
        facts = self.facts(self.processor(final_logit_softcapping=30.0))
        self.assertEqual(facts.softcap, 30.0)

    def test_head(self):
        """Red when a head that is not this rank's shard is taken for one."""
        added = head_of(1, 2, 128, 64)
        added.num_embeddings = 130
        self.assertIs(dense_reason(self.facts(head=added)), DenseReason.ADDED_VOCAB)
        elsewhere = head_of(0, 2, 128, 64)
        whole = head_of(1, 2, 128, 64)
        whole.tp_size = 1
        for head in (elsewhere, whole, SimpleNamespace(weight=None)):
            facts = self.facts(head=head)
            self.assertIs(dense_reason(facts), DenseReason.UNSUPPORTED_HEAD)

    def test_a_processor_of_its_own(self):
        """Red when a subclass that computes logits otherwise is taken for ours."""

        class Other(LogitsProcessor):
            pass

        other = self.processor()
        other.__class__ = Other
        self.assertFalse(self.facts(other).supported_head)

    def test_a_worker_without_packed_sites(self):
        """Red when a worker is asked for attributes that it does not have."""
        for worker in (None, SimpleNamespace()):
            reason = dense_reason(self.facts(worker=worker))
            self.assertIs(reason, DenseReason.UNSUPPORTED_WORKER)

    def test_a_worker_whose_heads_are_whole(self):
        """Red when frozen-KV MTP, which has no packed sites either, is told that its
        worker lacks them: its processor gathers nothing."""
        whole = self.runner(self.processor(do_tensor_parallel_all_gather=False))
        frozen = SimpleNamespace(draft_runners=[whole], hot_token_id=None)
        reason = dense_reason(self.facts(worker=frozen))
        self.assertIs(reason, DenseReason.NO_GATHER)
        frozen.draft_runners.append(self.runner())
        reason = dense_reason(self.facts(worker=frozen))
        self.assertIs(reason, DenseReason.UNSUPPORTED_WORKER)

    def test_token_maps(self):
        """Red when EAGLE3's own table drafts densely, or any other map does not: the
        target's head sliced by --speculative-token-map, a table of other length."""
        table = torch.arange(128) * 3
        token_map = DenseReason.TOKEN_MAP
        cases = ((table, table, None), (None, table, token_map))
        cases += ((table[:100], table[:100], token_map), (None, None, None))
        for own, applied, reason in cases:
            worker = self.worker(self.runner(hot_token_id=own), hot_token_id=applied)
            self.assertIs(dense_reason(self.facts(worker=worker)), reason)
        worker = self.worker(self.runner(), hot_token_id=table)
        self.assertIs(dense_reason(self.facts(worker=worker)), token_map)

    def test_a_head_for_every_layer(self):
        """Red when only the first layer's head is looked at, or a worker without a
        token map (multi-layer MTP) is asked for one."""
        runners = [self.runner() for _ in range(3)]
        facts = self.all_facts(worker=self.worker(*runners))
        self.assertEqual(facts, (DraftFacts(),) * 3)
        self.assertIsNone(first_reason(facts))
        runners[2] = self.runner(head=SimpleNamespace(weight=None))
        facts = self.all_facts(worker=self.worker(*runners))
        self.assertIs(first_reason(facts), DenseReason.UNSUPPORTED_HEAD)

    def test_a_softcap_of_zero_is_none(self):
        """Red when a cap that the dense path ignores divides by zero."""
        packed = VocabParallelDraft(
            self.processor(final_logit_softcapping=0), head_of(0, 2, 128, 64), None, ""
        )
        self.assertIsNone(packed.softcap)


class TestTrialRow(CustomTestCase):
    def reason(self, compute):
        head = head_of(0, 2, 128, 64)
        head.embedding_dim = 8
        processor = SimpleNamespace(_compute_lm_head=compute)
        model = SimpleNamespace(lm_head=head, logits_processor=processor)
        runner = SimpleNamespace(model=model, dtype=torch.bfloat16, device="cpu")
        return _trial_reason(runner)

    def test_shard_columns(self):
        """Red when the trial asks for another width than the shard's."""
        self.assertIsNone(self.reason(lambda row, head: row.new_zeros(1, 64)))

    def test_other_columns_or_a_failure(self):
        """Red when a head of other columns, or one that fails, is taken."""

        def fail(row, head):
            raise RuntimeError("planted")

        unsupported = DenseReason.UNSUPPORTED_HEAD
        self.assertIs(self.reason(lambda row, head: row.new_zeros(1, 128)), unsupported)
        self.assertIs(self.reason(fail), unsupported)


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
