"""Whether a worker collects probabilities, and which policy its adaptive steps get."""

import json
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable
from unittest.mock import patch

import torch

from sglang.srt.managers.scheduler_components.internal_state import (
    SchedulerInternalStateController,
)
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.speculative import chain_confidence_install as module
from sglang.srt.speculative.adaptive_confidence import ConfidencePolicy
from sglang.srt.speculative.adaptive_runtime_state import AdaptiveController
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams
from sglang.srt.speculative.chain_confidence import ChainConfidence
from sglang.srt.speculative.chain_confidence_install import (
    OffReason,
    install_chain_confidence,
    off_reason,
)
from sglang.srt.speculative.draft_confidence_stats import DraftConfidenceStats
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestOffReasons(CustomTestCase):
    def test_each_reason(self):
        """Red when a configuration without a meaning collects, or one with collects
        nothing."""
        chain = dict(
            has_sites=True,
            pp_size=1,
            pp_relays_chains=False,
            topk=1,
            rejection_sampling=False,
            device="cpu",
        )
        self.assertIsNone(off_reason(**chain))
        self.assertIsNone(off_reason(**chain | dict(device="cuda", topk=None)))
        for changed, reason in (
            (dict(has_sites=False), OffReason.UNSUPPORTED_WORKER),
            (dict(pp_size=2), OffReason.PIPELINE_PARALLEL),
            (dict(topk=4), OffReason.TREE),
            (dict(rejection_sampling=True), OffReason.SAMPLED_DRAFT),
            (dict(device="npu"), OffReason.UNSUPPORTED_DEVICE),
        ):
            with self.subTest(reason=reason):
                self.assertEqual(off_reason(**chain | changed), reason)


ADAPTIVE = dict(
    speculative_algorithm="EAGLE",
    speculative_eagle_topk=1,
    speculative_num_steps=3,
    speculative_draft_confidence=True,
    speculative_adaptive=True,
    speculative_adaptive_policy="confidence",
)


def two_ranks(gather: Callable[[Any], list]) -> SimpleNamespace:
    """Rank 0 of two; ``gather``: what both say, from what rank 0 says."""
    group = SimpleNamespace(all_gather_object=gather)
    return SimpleNamespace(tp_size=2, tp_group=group, tp_rank=0, pp_rank=0, pp_size=1)


def spec_worker(device: str = "cpu") -> SimpleNamespace:
    """What an installation reads of an EAGLE worker with adaptive steps. Its
    head has no shards, and does not run."""
    processor = SimpleNamespace(draft_logsumexp=None, final_logit_softcapping=None)
    model = SimpleNamespace(lm_head=None, logits_processor=processor)
    runner = SimpleNamespace(model=model, dtype=torch.float32, device=device)
    draft_worker = SimpleNamespace(
        draft_confidence=None, draft_runners=[runner], device="cpu"
    )
    worker = SimpleNamespace(draft_worker=draft_worker, speculative_num_steps=3)
    worker.adaptive_controller = AdaptiveController(
        worker, AdaptiveSpeculativeParams(initial_steps=3)
    )
    return worker


class TestInstall(CustomTestCase):
    def install(self, worker: SimpleNamespace, **changed) -> list:
        """The warnings of an installation."""
        self.enterContext(get_context().override_server_args(**ADAPTIVE | changed))
        self.enterContext(get_parallel().override(tp_rank=0, pp_rank=0))
        with patch.object(module.logger, "warning") as warning:
            install_chain_confidence(worker)
        return [call.args[0] for call in warning.call_args_list]

    def assert_off(self, worker: SimpleNamespace, reason: OffReason) -> None:
        self.assertEqual(
            worker.draft_confidence_status, {"collects": False, "reason": reason.value}
        )
        (runner,) = worker.draft_worker.draft_runners
        self.assertIsNone(worker.draft_worker.draft_confidence)
        self.assertIsNone(runner.model.logits_processor.draft_logsumexp)
        self.assertIs(
            type(worker.adaptive_controller.params), AdaptiveSpeculativeParams
        )

    def test_the_policy_comes_with_the_collection(self):
        """Red when a server that collects keeps SGLang's policy, or starts elsewhere."""
        worker = spec_worker()
        self.assertEqual(self.install(worker), [])
        self.assertEqual(worker.draft_confidence_status, {"collects": True})
        self.assertIsInstance(worker.draft_worker.draft_confidence, ChainConfidence)
        policy = worker.adaptive_controller.params
        self.assertIsInstance(policy, ConfidencePolicy)
        self.assertEqual(policy.get_steps_for_batch(1), 3)

    def test_the_policys_temperatures(self):
        """Red when the policy does not scale by the file that the server was given."""
        folder = self.enterContext(tempfile.TemporaryDirectory())
        path = Path(folder) / "temperatures.json"
        worker = spec_worker()
        steps = max(worker.adaptive_controller.candidate_steps)
        path.write_text(json.dumps({"temperatures": [1e6] * steps}))
        self.install(worker, speculative_draft_confidence_temperatures=str(path))
        policy = worker.adaptive_controller.params
        # Scaled to 0.5 a position: sure drafts of three steps would stay.
        sure = SimpleNamespace(
            draft_probability=torch.full((1, 3), 0.99),
            next_draft_probability=torch.full((1, 1), 0.99),
        )
        policy.observe(sure)
        policy.on_verify_complete([3], 1)
        self.assertLess(policy.get_steps_for_batch(1), 3)

    def test_accept_lengths_where_nothing_is_collected(self):
        """Red when the policy that nothing is collected for is left in place, where its
        steps would never change, or takes the fallback's place in silence."""
        worker = spec_worker()
        (warning,) = self.install(worker, speculative_use_rejection_sampling=True)
        self.assert_off(worker, OffReason.SAMPLED_DRAFT)
        for part in ("--speculative-adaptive-policy confidence", "sampled_draft"):
            self.assertIn(part, warning)
        self.assert_steps_follow(worker.adaptive_controller.params)

    def assert_steps_follow(self, policy: AdaptiveSpeculativeParams) -> None:
        for _ in range(40):
            steps = policy.get_steps_for_batch(1)
            policy.on_verify_complete([steps], 1)
        self.assertGreater(policy.get_steps_for_batch(1), 3)

    def test_collection_without_the_policy(self):
        """Red when collecting alone changes the policy, or warns of one that nobody
        asked for."""
        worker = spec_worker()
        changed = dict(speculative_adaptive_policy="accept-length")
        self.assertEqual(self.install(worker, **changed), [])
        self.assertTrue(worker.draft_confidence_status["collects"])
        sampled = spec_worker()
        changed["speculative_use_rejection_sampling"] = True
        self.assertEqual(self.install(sampled, **changed), [])
        for controller in (worker.adaptive_controller, sampled.adaptive_controller):
            self.assertIs(type(controller.params), AdaptiveSpeculativeParams)

    def test_a_head_that_does_not_run(self):
        """Red when a head that has no dtype to tell ends the launch."""
        worker = spec_worker(device="cuda")
        with patch.object(module.logger, "exception") as shown:
            (warning,) = self.install(worker)
        self.assert_off(worker, OffReason.UNSUPPORTED_HEAD)
        self.assertIn("unsupported_head", warning)
        shown.assert_called_once()

    def test_a_head_that_does_not_run_on_another_rank(self):
        """Red when one rank collects, and chooses steps by it, and another does not."""
        worker, told = spec_worker(), []
        two = two_ranks(lambda own: told.append(own) or [own, False])
        with patch.object(module, "get_parallel", lambda: two):
            self.install(worker)
        self.assertEqual(told, [True])
        self.assert_off(worker, OffReason.UNSUPPORTED_HEAD)


class TestAgreedPolicy(CustomTestCase):
    """Files that flags name are read on every host."""

    def install(self, others: list, temperatures: str = "") -> SimpleNamespace:
        """An installation on rank 0; ``others``: what rank 1 says of its head and of
        its files. A function is given what rank 0 says."""
        worker, said = spec_worker(), iter(others)

        def gather(own):
            other = next(said)
            return [own, other(own) if callable(other) else other]

        changed = dict(speculative_draft_confidence_temperatures=temperatures or None)
        self.enterContext(get_context().override_server_args(**ADAPTIVE | changed))
        with patch.object(module, "get_parallel", lambda: two_ranks(gather)):
            install_chain_confidence(worker)
        self.assertIsNone(next(said, None), "a collective was left out")
        return worker

    def test_the_same_files(self):
        """Red when ranks that agree are refused."""
        worker = self.install([True, lambda own: json.loads(json.dumps(own))])
        self.assertIsInstance(worker.adaptive_controller.params, ConfidencePolicy)

    def test_other_files(self):
        """Red when ranks go on with policies that choose different steps."""
        for key, other in (
            ("config", {"confidence_threshold": 0.9}),
            ("temperatures", [2.0]),
        ):
            with self.subTest(key=key):
                with self.assertRaisesRegex(ValueError, "TP ranks 0 and 1 read"):
                    self.install([True, lambda own: {**own, key: other}])

    def test_a_file_that_one_rank_cannot_read(self):
        """Red when the rank raises alone, before the others hear of it, or they go on."""
        with self.assertRaisesRegex(ValueError, "TP rank 1: no such file"):
            self.install([True, "no such file"])
        told = []
        with self.assertRaisesRegex(ValueError, "TP rank 0: .*missing.json"):
            self.install([True, lambda own: told.append(own)], "missing.json")
        self.assertIn("missing.json", told[0])
        broken = patch.object(
            module, "confidence_policy", side_effect=TypeError("list")
        )
        with broken, self.assertRaisesRegex(ValueError, "TP rank 0: TypeError: list"):
            self.install([True, lambda own: told.append(own)])
        self.assertEqual(told[1], "TypeError: list")


class TestServerInfo(CustomTestCase):
    def test_whether_it_collects(self):
        """Red when /server_info does not say why nothing is collected, or says
        something without the flag."""
        status = {"collects": False, "reason": "tree"}
        for stats, shown in ((DraftConfidenceStats(), status), (None, None)):
            scheduler = SimpleNamespace(
                spec_algorithm=SimpleNamespace(
                    is_none=lambda: False, is_dspark=lambda: False
                ),
                draft_worker=None,
                model_worker=SimpleNamespace(draft_confidence_status=status),
                metrics_reporter=SimpleNamespace(draft_confidence=stats),
            )
            controller = SimpleNamespace(
                scheduler=scheduler, _average_accept_length=lambda: None
            )
            state = {}
            SchedulerInternalStateController._add_speculative(controller, state)
            self.assertEqual(state.get("draft_confidence"), shown)


if __name__ == "__main__":
    unittest.main()
