"""Probabilities of drafted chains on their way between pipeline stages."""

import contextlib
import math
import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.arg_groups import validation_hook
from sglang.srt.environ import envs
from sglang.srt.layers import vocab_parallel_draft_install
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative import chain_confidence_install, eagle_worker_v2
from sglang.srt.speculative.chain_confidence_install import install_chain_confidence
from sglang.srt.speculative.draft_confidence_stats import DraftConfidenceStats
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2
from sglang.srt.speculative.pp_spec_relay import PPSpecRelayInput
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import pp_relay_confidence_rank_kit as kit
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=25, suite="base-a-test-cpu")

STEPS = kit.STEPS


def relay(rids: str, turn: int = 0) -> PPSpecRelayInput:
    """Drafted rows; those of a request can be told apart by its probabilities."""
    tokens = torch.zeros(len(rids), STEPS + 1, dtype=torch.int64)
    return PPSpecRelayInput(
        rids=list(rids),
        tokens=tokens,
        parents=tokens[:, :STEPS],
        top_scores=tokens[:, :STEPS],
        draft_probability=torch.tensor([kit.chain_of(r, turn) for r in rids]),
    )


def shown(probability) -> list:
    """Rows as lists, ``None`` for one without drafts."""
    rows = probability if isinstance(probability, list) else probability.tolist()
    return [None if all(map(math.isnan, row)) else row for row in rows]


class TestRelayInput(CustomTestCase):
    def test_filter_merge_and_reindex(self):
        """Red when a request leaves, joins or moves, and takes another's row."""
        one = relay("abcd")
        one.filter_batch(torch.tensor([3, 0]))
        one.merge_batch(relay("ef"))
        one = one.reindex(list("eadf"))
        expected = [kit.chain_of(r, 0) for r in "eadf"]
        self.assertTrue(torch.equal(one.draft_probability, torch.tensor(expected)))

    def test_requests_that_were_not_drafted_for(self):
        """Red when a request that comes from its prefill gets a probability, or takes
        away those of the requests that it joins."""
        for first, second in (("ab", "c"), ("c", "ab")):
            rows = {r: kit.chain_of(r, 0) for r in "ab"} | {"c": None}
            make = {"ab": relay, "c": kit.degenerate}
            one = make[first](first)
            one.merge_batch(make[second](second))
            expected = [rows[r] for r in first + second]
            self.assertEqual(shown(one.draft_probability), expected)

    def test_an_empty_batch_takes_the_others(self):
        """Red when the first microbatch after an idle time loses its probabilities, or
        an empty one that joins does."""
        one, empty = relay("ab"), relay("x")
        empty.filter_batch(torch.tensor([], dtype=torch.int64))
        one.merge_batch(empty)
        empty.merge_batch(one)
        for got in (one, empty):
            self.assertEqual(
                shown(got.draft_probability), shown(relay("ab").draft_probability)
            )

    def test_the_next_chain(self):
        """Red when a request keeps the probabilities of the chain that was verified, or
        one that the round did not know loses its own."""
        one = relay("abx", turn=0)
        one.adopt(relay("zba", turn=1))
        expected = [kit.chain_of("a", 1), kit.chain_of("b", 1), kit.chain_of("x", 0)]
        self.assertEqual(shown(one.draft_probability), expected)
        # Verified, and not drafted for again.
        one.adopt(kit.degenerate("a"))
        self.assertEqual(shown(one.draft_probability), [None, *expected[1:]])

    def test_a_request_named_twice(self):
        """Red when its rows' probabilities part from their tokens."""
        one = relay("aba", turn=0)
        one.adopt(relay("ba", turn=1))
        expected = [kit.chain_of(rid, 1) for rid in "aba"]
        self.assertEqual(shown(one.draft_probability), expected)

    def test_nothing_is_carried_when_nothing_is_collected(self):
        """Red when an absent field becomes a tensor of garbage."""
        one = kit.degenerate("abc")
        one.merge_batch(kit.degenerate("d"))
        one.adopt(kit.degenerate("ad"))
        one.filter_batch(torch.tensor([0, 3]))
        self.assertIsNone(one.reindex(["d", "a"]).draft_probability)


class TestScheduler(CustomTestCase):
    def test_through_the_ring(self):
        """Red when a stage reports or verifies another request's or round's
        probabilities, when the ranks of a stage or the stages differ, or when a chain's
        probabilities do not reach the first stage."""
        chains = kit.chain_of
        none = [None] * 3
        first = [chains("c", 0), None, chains("a", 0), chains("b", 0)]
        expected = [
            {"verified": none, "reported": none, "verifies": first},
            {
                "verified": first,
                "reported": first,
                "verifies": [chains("d", 1), chains("c", 1)],
            },
        ]
        for rounds in run_ranks(kit.rounds, kit.TP * kit.STAGES):
            got = [{key: shown(rows) for key, rows in seen.items()} for seen in rounds]
            self.assertEqual(got, expected)

    def test_only_what_is_collected(self):
        """Red when a server without the flag, or one that cannot collect, rebuilds or
        sends a field that stock has not."""
        for collects, flag in ((False, True), (True, False)):
            batch = kit.microbatch("ab", kit.degenerate("ab"))
            stage = kit.Stage(collects)
            with kit.settings(speculative_draft_confidence=flag):
                self.assertIsNone(kit.rebuilt(stage, batch).draft_probability)
            result = kit.result_of("ab", 0, verified=None)
            result.next_verify_probability = None
            sent = stage._pp_prepare_tensor_dict(result, batch)
            self.assertFalse([name for name in sent if "probability" in name])

    def test_the_last_stage_hands_on_its_next_chain(self):
        """Red when the chain that is drafted behind a verification loses its
        probabilities, or the verification those of the chain it looked at."""
        verified, drafted = torch.rand(2, STEPS), torch.rand(2, STEPS)
        looked_at = SimpleNamespace(
            is_verify_input=lambda: True, draft_probability=verified, kv_loc_plan=None
        )
        topology = torch.zeros(2, STEPS)
        following = SimpleNamespace(draft_token=None, draft_probability=drafted)
        worker = SimpleNamespace(
            activate_step_by_batch=lambda size: None,
            verify=lambda *args, **options: kit.result_of("ab", 0, None),
            speculative_num_steps=STEPS,
            draft_worker=SimpleNamespace(
                parallel_layout=None,
                _draft_extend_for_decode=lambda *args, **options: None,
                draft=lambda *args, **options: (following, topology, topology),
            ),
        )
        batch = kit.microbatch("ab", looked_at)
        batch.is_extend_in_batch = False
        with (
            get_parallel().override(pp_size=2),
            patch.object(
                eagle_worker_v2, "draft_tp_context", lambda _: contextlib.nullcontext()
            ),
            patch.multiple(
                eagle_worker_v2,
                speculative_moe_backend_context=contextlib.nullcontext,
                speculative_moe_a2a_backend_context=contextlib.nullcontext,
            ),
        ):
            result = EAGLEWorkerV2.forward_batch_generation(worker, batch)
        self.assertIs(result.draft_probability, verified)
        self.assertIs(result.next_verify_probability, drafted)


class TestInstall(CustomTestCase):
    def install(self, worker: SimpleNamespace, said: list, relays: bool) -> dict:
        """The status of a stage, where the stages say ``said`` after it."""
        stages = SimpleNamespace(all_gather_object=lambda reason: [reason, *said])
        with (
            kit.settings(),
            envs.SGLANG_ENABLE_PP_SPEC.override(relays),
            get_parallel().override(pp_size=2, pp_rank=0, tp_rank=0, pp_group=stages),
        ):
            install_chain_confidence(worker)
        return worker.draft_confidence_status

    def test_a_stage_reports_what_the_last_one_collects(self):
        """Red when a stage without a draft says that its worker is not supported, or
        that all is well where the last one's head does not run."""
        head = chain_confidence_install.OffReason.UNSUPPORTED_HEAD
        for said, status in (
            (None, {"collects": True}),
            (head, {"collects": False, "reason": "unsupported_head"}),
        ):
            # The target's worker: such a stage has no other.
            self.assertEqual(self.install(SimpleNamespace(), [said], True), status)

    def test_every_stage_is_asked(self):
        """Red when a stage without a draft does not come to where the stages agree,
        which the last one would wait for, or says nothing of its path."""
        asked = []
        captured = SimpleNamespace(init_cuda_graphs=lambda: None)
        with (
            kit.settings(speculative_vocab_parallel_draft="on"),
            patch.object(
                chain_confidence_install, "install_chain_confidence", asked.append
            ),
            patch.object(
                vocab_parallel_draft_install,
                "install_vocab_parallel_draft",
                asked.append,
            ),
        ):
            for draft_worker in (None, SimpleNamespace(**vars(captured))):
                stage = SimpleNamespace(tp_worker=captured, draft_worker=draft_worker)
                Scheduler.init_all_cuda_graphs(stage)
                for _ in range(2):
                    self.assertIs(asked.pop(), draft_worker or captured)

    def test_no_speculation(self):
        """Red when a server that drafts nothing is told of a draft path because the flag
        is left on."""
        captured = SimpleNamespace(init_cuda_graphs=lambda: None)
        stage = SimpleNamespace(tp_worker=captured, draft_worker=None)
        changed = dict(
            speculative_algorithm=None,
            speculative_vocab_parallel_draft="on",
            speculative_draft_confidence=False,
        )
        with (
            kit.settings(**changed),
            patch.object(
                vocab_parallel_draft_install, "install_vocab_parallel_draft"
            ) as install,
        ):
            Scheduler.init_all_cuda_graphs(stage)
        install.assert_not_called()

    def test_a_prefill_server_with_stages(self):
        """Red when a server that verifies nothing collects."""
        draft = SimpleNamespace(draft_confidence=None, device="cpu")
        worker = SimpleNamespace(draft_worker=draft)
        reason = chain_confidence_install.OffReason.PIPELINE_PARALLEL
        status = self.install(worker, [reason], False)
        self.assertEqual(status, {"collects": False, "reason": "pipeline_parallel"})
        self.assertIsNone(draft.draft_confidence)


class TestWhatIsServed(CustomTestCase):
    def test_speculation_with_stages(self):
        """Red when SGLang serves another draft with stages: its chains are to be
        carried, too, or their probabilities are lost without a reason."""
        served = dict(
            speculative_algorithm="EAGLE",
            disable_overlap_schedule=True,
            enable_multi_layer_eagle=False,
            speculative_adaptive=False,
            disaggregation_mode="null",
            min_free_slots_delay=None,
        )
        relays, prefill = {"relays": True}, dict(disaggregation_mode="prefill")
        for options, is_served in (
            (relays, True),
            (relays | dict(speculative_algorithm="EAGLE3"), False),
            (relays | dict(speculative_algorithm="STANDALONE"), False),
            (relays | dict(speculative_algorithm="DFLASH"), False),
            (relays | dict(enable_multi_layer_eagle=True), False),
            (relays | dict(speculative_adaptive=True), False),
            (relays | prefill, False),
            ({}, False),
            (prefill, True),
            (dict(speculative_algorithm="DSPARK"), False),
            (relays | prefill | dict(speculative_algorithm="DSPARK"), False),
            (prefill | dict(speculative_algorithm="DSPARK"), True),
        ):
            fields = served | options
            with (
                self.subTest(**options),
                envs.SGLANG_ENABLE_PP_SPEC.override(fields.pop("relays", False)),
                patch.object(validation_hook, "attn_dp_enabled_of", lambda cfg: False),
                (
                    contextlib.nullcontext()
                    if is_served
                    else self.assertRaises(AssertionError)
                ),
            ):
                check = validation_hook.check_pipeline_parallel_compat
                check(SimpleNamespace(**fields))


class TestPlaceholders(CustomTestCase):
    def test_a_round_without_drafts(self):
        """Red when placeholders count as drafts that the model was sure or unsure of,
        reach the pairs of a fit, or are left out of what the target ran."""
        seen = []
        collector = SimpleNamespace(record=lambda *pair: seen.append(pair))
        stats = DraftConfidenceStats(collector=collector)
        reqs = [
            SimpleNamespace(
                is_retracted=False, finished=lambda: False, draft_confidence=None
            )
            for _ in range(2)
        ]
        one = torch.tensor([[math.nan] * 2, [0.5, 0.25]])
        for probability, correct in ((one, [1, 2]), (one[:1].expand(2, 2), [0, 0])):
            result = SimpleNamespace(
                draft_probability=probability, num_correct_drafts_per_req_cpu=correct
            )
            stats.note_verify(reqs, result, 3)
        ((kept, counts),) = seen
        self.assertEqual((kept.tolist(), counts), ([[0.5, 0.25]], [2]))
        info = [req.draft_confidence.meta_info() for req in reqs]
        self.assertEqual([i["spec_draft_confidence"] for i in info], [0.0, 0.375])
        self.assertEqual(
            [i["spec_expected_accept_length"] for i in info], [1.0, (1.0 + 1.625) / 2]
        )
        self.assertEqual([i["spec_num_verified_tokens"] for i in info], [6, 6])


if __name__ == "__main__":
    unittest.main()
