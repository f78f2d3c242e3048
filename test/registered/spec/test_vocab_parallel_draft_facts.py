"""What is read of a draft worker and its heads before a path is chosen."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.layers import vocab_parallel_draft_install as install
from sglang.srt.layers import vocab_parallel_draft_transport as transport
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.vocab_parallel_draft import (
    VocabParallelDraft,
)
from sglang.srt.layers.vocab_parallel_draft_eligibility import (
    DenseReason,
    DraftFacts,
    collect_facts,
    dense_reason,
)
from sglang.srt.layers.vocab_parallel_draft_install import (
    first_reason,
    head_runs,
)
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits.vocab_head_kit import head_of
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


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
    def runs(self, compute):
        head = head_of(0, 2, 128, 64)
        head.embedding_dim = 8
        processor = SimpleNamespace(_compute_lm_head=compute)
        model = SimpleNamespace(lm_head=head, logits_processor=processor)
        runner = SimpleNamespace(model=model, dtype=torch.bfloat16, device="cpu")
        return head_runs(runner)

    def test_shard_columns(self):
        """Red when the trial asks for another width than the shard's."""
        self.assertTrue(self.runs(lambda row, head: row.new_zeros(1, 64)))

    def test_one_head_of_several_that_fails(self):
        """Red when one head that runs is enough for all layers to go packed."""

        def runner(columns: int) -> SimpleNamespace:
            head = head_of(0, 2, 128, 64)
            head.embedding_dim = 8
            processor = SimpleNamespace(
                vocab_size=128,
                _compute_lm_head=lambda row, head: row.new_zeros(1, columns),
            )
            model = SimpleNamespace(lm_head=head, logits_processor=processor)
            return SimpleNamespace(model=model, dtype=torch.float32, device="cpu")

        group = SimpleNamespace(all_gather_object=lambda verdict: [verdict] * 2)
        with patch.object(transport, "own_push_gather", lambda group: None):
            reason, packed, _ = install._build(
                [runner(64), runner(128)], DraftFacts(), None, group
            )
        self.assertIs(reason, DenseReason.UNSUPPORTED_HEAD)
        self.assertEqual(packed, ())

    def test_other_columns_or_a_failure(self):
        """Red when a head of other columns, or one that fails, is taken."""

        def fail(row, head):
            raise RuntimeError("planted")

        self.assertFalse(self.runs(lambda row, head: row.new_zeros(1, 128)))
        self.assertFalse(self.runs(fail))


if __name__ == "__main__":
    unittest.main()
