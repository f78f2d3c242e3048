"""What the scheduler sums up of the draft probability, and how it reaches a response."""

import math
import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.managers.io_struct import unwrap_from_pickle, wrap_as_pickle
from sglang.srt.managers.multi_tokenizer_mixin import _extract_field_by_index
from sglang.srt.managers.scheduler_components.batch_result_processor import (
    SchedulerBatchResultProcessor,
)
from sglang.srt.managers.tokenizer_manager import TokenizerManager
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.observability.metrics_collector import SchedulerStats
from sglang.srt.speculative import draft_confidence_stats
from sglang.srt.speculative.adaptive_confidence import ConfidencePolicy
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams
from sglang.srt.speculative.draft_confidence_stats import (
    DraftConfidenceStats,
    DraftConfidenceTotals,
    verify_totals,
)
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

CHAINS = torch.tensor([[0.5, 0.25], [1.0, 0.5], [0.0, 1.0]])
COLLECTS = {"collects": True}


def request(retracted: bool = False, finished: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        is_retracted=retracted, finished=lambda: finished, draft_confidence=None
    )


def result_of(probability: torch.Tensor, correct: list) -> SimpleNamespace:
    return SimpleNamespace(
        draft_probability=probability,
        next_draft_probability=None,
        num_correct_drafts_per_req_cpu=correct,
    )


class TestTotals(CustomTestCase):
    def test_one_verify(self):
        """Red when the length leaves the bonus token out, or adds probabilities where
        it should add survivals."""
        rows = verify_totals(CHAINS)
        self.assertEqual([row.probability_sum for row in rows], [0.75, 1.5, 1.0])
        self.assertEqual([row.accept_length_sum for row in rows], [1.625, 2.5, 1.0])
        self.assertEqual([row.num_drafts for row in rows], [2, 2, 2])

    def test_temperatures_scale_the_length_only(self):
        """Red when the mean probability stops being the exact one, or the length is not
        the calibrated one."""
        (row,) = verify_totals(torch.tensor([[0.8]]), torch.tensor([2.0]))
        self.assertAlmostEqual(row.probability_sum, 0.8, places=6)
        scaled = 1 / (1 + math.exp(-math.log(4.0) / 2))
        self.assertAlmostEqual(row.accept_length_sum, 1 + scaled, places=6)

    def test_a_verify_without_drafts(self):
        """Red when a verify of zero adaptive steps divides by zero, or is not counted."""
        (row,) = verify_totals(torch.empty(1, 0))
        self.assertEqual((row.num_verifies, row.accept_length_sum), (1, 1.0))
        info = row.meta_info()
        self.assertEqual(info["spec_draft_confidence"], 0.0)
        self.assertEqual(info["spec_num_verified_tokens"], 1)

    def test_means_of_a_request(self):
        """Red when verifies of different numbers of steps are averaged as equals, or a
        verified token is lost."""
        totals = DraftConfidenceTotals()
        for probability in ([[0.5, 0.5, 0.5, 0.5]], [[1.0]]):
            for row in verify_totals(torch.tensor(probability)):
                totals.add(row)
        info = totals.meta_info()
        self.assertEqual(info["spec_draft_confidence"], 3.0 / 5)
        self.assertEqual(info["spec_expected_accept_length"], (1.9375 + 2.0) / 2)
        self.assertEqual(info["spec_num_verified_tokens"], 7)


class TestStats(CustomTestCase):
    def test_only_real_rows(self):
        """Red when a retracted or finished request's row counts, or a row is added to
        the request beside it."""
        stats = DraftConfidenceStats()
        reqs = [request(retracted=True), request(), request(finished=True)]
        stats.note_verify(reqs, result_of(CHAINS, [0, 2, 0]), 3)
        self.assertIsNone(reqs[0].draft_confidence)
        self.assertEqual(reqs[1].draft_confidence.probability_sum, 1.5)
        self.assertIsNone(reqs[2].draft_confidence)
        self.assertEqual(stats.life.num_verifies, 1)
        stats.note_verify([request(finished=True)], result_of(CHAINS[:1], [0]), 3)
        self.assertEqual(stats.life.num_verifies, 1)

    def test_a_verify_without_drafts_counts(self):
        """Red when rounds of zero adaptive steps are left out of a request's means, or
        when a worker that does not collect is given numbers."""
        stats, req = DraftConfidenceStats(), request()
        stats.note_verify([req], result_of(CHAINS[:1], [1]), 3)
        stats.note_verify([req], result_of(None, [0]), 1)
        info = req.draft_confidence.meta_info()
        self.assertEqual(info["spec_expected_accept_length"], (1.625 + 1.0) / 2)
        self.assertEqual(info["spec_num_verified_tokens"], 4)
        other = request()
        stats.note_verify([other], result_of(None, [0]), 4)
        self.assertIsNone(other.draft_confidence)

    def test_collected_rows_are_the_counted_ones(self):
        """Red when the pairs hold a row that counts nowhere, or another row's outcome."""
        seen = []
        collector = SimpleNamespace(record=lambda *pair: seen.append(pair))
        stats = DraftConfidenceStats(collector=collector)
        reqs = [request(finished=True), request(), request()]
        stats.note_verify(reqs, result_of(CHAINS, [7, 2, 1]), 3)
        ((probability, correct),) = seen
        self.assertTrue(torch.equal(probability, CHAINS[1:]))
        self.assertEqual(correct, [2, 1])

    def test_an_idle_server_writes(self):
        """Red when a short run's pairs stay in memory; without a collector nothing has
        to be written."""
        flushed = []
        collector = SimpleNamespace(flush=lambda: flushed.append(True))
        DraftConfidenceStats(collector=collector).on_idle()
        DraftConfidenceStats().on_idle()
        self.assertEqual(flushed, [True])

    def test_interval_and_life(self):
        """Red when a log interval keeps the last one's sums, when an empty one zeroes
        the gauges, or when the server's life loses an interval."""
        stats, gauges = DraftConfidenceStats(), SchedulerStats()
        worker = SimpleNamespace(draft_confidence_status=COLLECTS)
        nothing = {"draft_confidence": COLLECTS}
        self.assertEqual(stats.server_info(worker), nothing)
        self.assertEqual(stats.report_interval(gauges), "")
        stats.note_verify([request()], result_of(CHAINS[:1], [1]), 3)
        self.assertIn("draft confidence: 0.38", stats.report_interval(gauges))
        stats.note_verify([request()], result_of(CHAINS[1:2], [2]), 3)
        self.assertIn("expected len: 2.50", stats.report_interval(gauges))
        self.assertEqual(stats.report_interval(gauges), "")
        self.assertEqual(gauges.spec_draft_confidence, 0.75)
        self.assertEqual(gauges.spec_expected_accept_length, 2.5)
        info = stats.server_info(worker)
        self.assertEqual(info["avg_spec_draft_confidence"], 2.25 / 4)
        self.assertEqual(info["avg_spec_expected_accept_length"], 4.125 / 2)
        stats.reset()
        self.assertEqual(stats.server_info(worker), nothing)


class TestOnVerify(CustomTestCase):
    def test_the_policy_sees_the_result_before_its_accept_lengths(self):
        """Red when the policy decides without the probabilities of the round, or with
        those of the round before."""
        seen = []
        policy = ConfidencePolicy(3)
        worker = SimpleNamespace(
            adaptive_controller=SimpleNamespace(params=policy),
            draft_confidence_status=COLLECTS,
            on_verify_complete_cpu=lambda correct, batch_size: seen.append(
                (policy._latest.probability, correct)
            ),
        )
        processor = SimpleNamespace(
            metrics_reporter=SimpleNamespace(
                draft_confidence=DraftConfidenceStats(),
                snapshot_spec_decode_metrics=lambda *_: None,
            ),
            model_worker=worker,
            advance_grammar_fsm=lambda *_: None,
        )
        result = GenerationBatchResult(
            next_token_ids=torch.zeros(3, dtype=torch.int64),
            accept_lens=torch.tensor([2]),
            speculative_num_draft_tokens=3,
            draft_probability=CHAINS[:1],
        )
        # Of a request that has finished the processor settles no tokens.
        batch = SimpleNamespace(reqs=[request(finished=True)])
        resolve = SchedulerBatchResultProcessor._resolve_spec_v2_tokens
        with patch.object(draft_confidence_stats, "going_on", lambda _: [0]):
            resolve(processor, result, batch)
        self.assertEqual(seen, [(CHAINS[:1].tolist(), [1])])

    def test_a_finished_request_is_no_evidence(self):
        """Red when the policy looks at rows of requests that had finished."""
        policy = ConfidencePolicy(3)
        worker = SimpleNamespace(
            adaptive_controller=SimpleNamespace(params=policy),
            draft_confidence_status=COLLECTS,
        )
        reqs = [request(finished=True), request()]
        result = result_of(CHAINS[:2], [1, 2])
        DraftConfidenceStats().on_verify(worker, reqs, result, 3)
        self.assertEqual(policy._latest.probability, CHAINS[1:2].tolist())
        self.assertEqual(policy._latest.rows, [1])

    def test_other_policies(self):
        """Red when a worker without the policy fails, or another one is handed what it
        does not know."""
        other = SimpleNamespace(params=AdaptiveSpeculativeParams(3))
        for attributes in (
            {},
            {"adaptive_controller": None},
            {"adaptive_controller": other},
        ):
            worker = SimpleNamespace(draft_confidence_status=COLLECTS, **attributes)
            stats = DraftConfidenceStats()
            stats.on_verify(worker, [request()], result_of(CHAINS[:1], [1]), 3)
            self.assertEqual(stats.life.num_verifies, 1)

    def test_a_worker_that_does_not_collect(self):
        """Red when rounds of zero adaptive steps give numbers to a request, or to a
        server that says that it collects nothing."""
        refused = {"collects": False, "reason": "sampled_draft"}
        for attributes in ({}, {"draft_confidence_status": refused}):
            stats, req = DraftConfidenceStats(), request()
            worker = SimpleNamespace(adaptive_controller=None, **attributes)
            stats.on_verify(worker, [req], result_of(None, [0]), 1)
            self.assertIsNone(req.draft_confidence)
            self.assertEqual(stats.life.num_verifies, 0)


class TestResponse(CustomTestCase):
    def meta_info(self, customized_info: dict, index: int, manager, state) -> dict:
        meta_info = {}
        TokenizerManager.update_request_meta_info(
            manager, meta_info, state, customized_info, index, None
        )
        return meta_info

    def test_values_and_not_lists(self):
        """Red when the fields become lists that grow with every streamed chunk, when a
        request gets its neighbour's, or when other customized info is lost."""
        manager = SimpleNamespace(
            _accumulate_request_meta_info=(
                TokenizerManager._accumulate_request_meta_info
            )
        )
        state = SimpleNamespace(
            customized_info_accumulated={}, customized_info_reported_keys=set()
        )
        for confidence in (0.5, 0.75):
            fields = {"spec_draft_confidence": confidence, "other": 1}
            customized = {
                "spec_draft_confidence": [None, fields],
                "tokens": [["a"], ["b"]],
            }
            self.assertEqual(
                self.meta_info(customized, 0, manager, state).keys(), {"tokens"}
            )
            got = self.meta_info(customized, 1, manager, state)
            self.assertEqual(got["spec_draft_confidence"], confidence)
        self.assertEqual(state.customized_info_accumulated.keys(), {"tokens"})

    def test_through_a_tokenizer_worker(self):
        """Red when the split of a batch over tokenizer workers drops or moves a
        request's fields."""
        values = [{"spec_draft_confidence": 0.5}, None]
        output = SimpleNamespace(
            customized_info=wrap_as_pickle({"spec_draft_confidence": values})
        )
        for index, value in enumerate(values):
            packed = _extract_field_by_index(
                output, "customized_info", index, check_length=False
            )
            one = SimpleNamespace(customized_info=packed)
            again = _extract_field_by_index(
                one, "customized_info", 0, check_length=False
            )
            got = unwrap_from_pickle(again)
            self.assertEqual(got, {"spec_draft_confidence": [value]})


if __name__ == "__main__":
    unittest.main()
