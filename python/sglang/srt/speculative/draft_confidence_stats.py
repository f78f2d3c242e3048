"""What the scheduler sums up of the exact draft probability, and where it is shown.

Per request in ``meta_info``, per server in ``/server_info``, the decode log and the
Prometheus gauges. Created only with ``--speculative-draft-confidence``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Sequence

import torch

from sglang.srt.arg_groups.draft_confidence_hook import server_temperatures
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.adaptive_confidence import ConfidencePolicy
from sglang.srt.speculative.draft_confidence import (
    calibrated,
    chain_survival,
    expected_accept_length,
)
from sglang.srt.speculative.draft_confidence_collect import DraftConfidenceCollector
from sglang.srt.speculative.pp_relay_confidence import drafted

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.utils import GenerationBatchResult
    from sglang.srt.observability.metrics_collector import SchedulerStats
    from sglang.srt.speculative.base_spec_worker import BaseSpecWorker


@dataclass
class DraftConfidenceTotals:
    """Sums over the verifies of a request or of a server.

    ``num_drafts`` counts drafted tokens that a verify looked at, ``num_placeholders``
    tokens that stood where nothing was drafted, ``probability_sum`` adds the drafts'
    probabilities, ``accept_length_sum`` the expected accept lengths.
    """

    num_verifies: int = 0
    num_drafts: int = 0
    num_placeholders: int = 0
    probability_sum: float = 0.0
    accept_length_sum: float = 0.0

    def add(self, other: DraftConfidenceTotals) -> None:
        """Add the sums of another to these."""
        self.num_verifies += other.num_verifies
        self.num_drafts += other.num_drafts
        self.num_placeholders += other.num_placeholders
        self.probability_sum += other.probability_sum
        self.accept_length_sum += other.accept_length_sum

    @property
    def confidence(self) -> float:
        """Mean probability of a drafted token; 0 when nothing was drafted."""
        return self.probability_sum / self.num_drafts if self.num_drafts else 0.0

    @property
    def expected_accept_length(self) -> float:
        """Mean expected accept length of a verify, bonus token included."""
        return self.accept_length_sum / self.num_verifies if self.num_verifies else 0.0

    def meta_info(self) -> dict[str, float]:
        """A request's fields. ``spec_num_verified_tokens``: rows that the target ran in
        its verifies, whatever number of steps each of them had."""
        tokens = self.num_drafts + self.num_placeholders + self.num_verifies
        return {
            "spec_draft_confidence": self.confidence,
            "spec_expected_accept_length": self.expected_accept_length,
            "spec_num_verified_tokens": tokens,
        }


def verify_totals(
    probability: torch.Tensor, temperatures: Optional[torch.Tensor] = None
) -> list[DraftConfidenceTotals]:
    """One verify of every row.

    Args:
        probability: FP32 ``[rows, steps]``, exact conditional probabilities of the
            drafted tokens; ``steps`` may be 0. A NaN row was verified with placeholders
            (``pp_relay_confidence``) and is expected to give the bonus token.
        temperatures: FP32 ``[positions]`` that the expected accept length is calibrated
            with; the mean probability stays exact.
    """
    chain = probability
    if temperatures is not None:
        chain = calibrated(probability, temperatures)
    lengths = expected_accept_length(chain_survival(chain)).tolist()
    sums = probability.sum(dim=-1, dtype=torch.float64).tolist()
    steps = probability.shape[-1]
    return [
        (
            DraftConfidenceTotals(1, steps, 0, *row)
            if has_drafts
            else DraftConfidenceTotals(1, 0, steps, 0.0, 1.0)
        )
        for has_drafts, *row in zip(drafted(probability).tolist(), sums, lengths)
    ]


def going_on(reqs: Sequence[Req]) -> list[int]:
    """Rows of a batch's requests that were neither retracted nor had finished."""
    return [i for i, req in enumerate(reqs) if not (req.is_retracted or req.finished())]


class DraftConfidenceStats:
    """Totals of one scheduler: since the last decode log, and of its life."""

    def __init__(
        self,
        temperatures: Optional[torch.Tensor] = None,
        collector: Optional[DraftConfidenceCollector] = None,
    ) -> None:
        self.temperatures = temperatures
        self.collector = collector
        self.interval = DraftConfidenceTotals()
        self.life = DraftConfidenceTotals()

    def on_verify(
        self,
        worker: BaseSpecWorker,
        reqs: Sequence[Req],
        result: GenerationBatchResult,
        stride: int,
    ) -> None:
        """Take one result on the CPU, before the worker is told its accept lengths: the
        confidence policy decides on them with what it observes here. Nothing of a worker
        that does not collect, whose verifies without drafts would count otherwise."""
        status = getattr(worker, "draft_confidence_status", None)
        if status is None or not status["collects"]:
            return
        controller = getattr(worker, "adaptive_controller", None)
        if controller is not None and isinstance(controller.params, ConfidencePolicy):
            controller.params.observe(result, going_on(reqs))
        self.note_verify(reqs, result, stride)

    def note_verify(
        self, reqs: Sequence[Req], result: GenerationBatchResult, stride: int
    ) -> None:
        """Add one result, on the CPU.

        Rows of requests that were retracted or had finished count nowhere, as in the
        accept lengths.

        Args:
            result: ``draft_probability`` FP32 ``[rows, steps]`` beside
                ``num_correct_drafts_per_req_cpu``; ``None`` without drafts.
            stride: tokens of a row that the target verified; 1 without drafts.
        """
        probability = result.draft_probability
        if probability is None:
            if stride != 1:
                return
            probability = torch.empty(len(reqs), 0)
        rows = going_on(reqs)
        if not rows:
            return
        probability = probability[rows]
        for row, totals in zip(rows, verify_totals(probability, self.temperatures)):
            req = reqs[row]
            if req.draft_confidence is None:
                req.draft_confidence = DraftConfidenceTotals()
            for owner in (req.draft_confidence, self.interval, self.life):
                owner.add(totals)
        if self.collector is not None:
            self._collect(probability, rows, result.num_correct_drafts_per_req_cpu)

    def _collect(
        self, probability: torch.Tensor, rows: Sequence[int], correct: Sequence[int]
    ) -> None:
        """``probability``: of these ``rows``; ``correct`` of all."""
        kept = drafted(probability)
        counts = [correct[row] for row, keep in zip(rows, kept.tolist()) if keep]
        if counts:
            self.collector.record(probability[kept], counts)

    def report_interval(self, stats: SchedulerStats) -> str:
        """Put the interval's means into the gauges' values and start the next interval;
        returns the decode log's part. An interval without a verify changes nothing."""
        if not self.interval.num_verifies:
            return ""
        confidence = self.interval.confidence
        length = self.interval.expected_accept_length
        stats.spec_draft_confidence = confidence
        stats.spec_expected_accept_length = length
        self.interval = DraftConfidenceTotals()
        return f"draft confidence: {confidence:.2f}, expected len: {length:.2f}, "

    def server_info(self, worker: BaseSpecWorker) -> dict[str, Any]:
        """Whether the worker collects, and averages of the server's life after its first
        verify."""
        info = {"draft_confidence": getattr(worker, "draft_confidence_status", None)}
        if not self.life.num_verifies:
            return info
        return info | {
            "avg_spec_draft_confidence": self.life.confidence,
            "avg_spec_expected_accept_length": self.life.expected_accept_length,
        }

    def on_idle(self) -> None:
        """Write what was collected: nothing waits for it."""
        if self.collector is not None:
            self.collector.flush()

    def reset(self) -> None:
        """Start over, as the server's other counters do."""
        self.interval, self.life = DraftConfidenceTotals(), DraftConfidenceTotals()


def create_draft_confidence_stats() -> DraftConfidenceStats:
    """The stats that the server's arguments and environment ask for."""
    return DraftConfidenceStats(
        temperatures=server_temperatures(get_spec()),
        collector=DraftConfidenceCollector.from_env(),
    )
