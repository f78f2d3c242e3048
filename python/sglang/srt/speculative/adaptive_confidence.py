"""Adaptive steps by the draft's confidence in its chains.

SGLang's own policy looks back at accept lengths, averaged over many verifications. This
one asks how far the next chain is likely to hold: the chosen number of steps is the
largest candidate whose last token still survives with ``confidence_threshold``. It reads
replicated bits only and computes in a fixed order, so that every rank decides the same.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch

from sglang.srt.arg_groups.draft_confidence_hook import server_temperatures
from sglang.srt.runtime_context import get_spec
from sglang.srt.speculative.adaptive_spec_params import (
    AdaptiveSpeculativeParams,
    AdaptiveStepSlot,
    _load_adaptive_config,
)
from sglang.srt.speculative.draft_confidence import calibrated

THRESHOLD_KEY = "confidence_threshold"

# One more step pays where its survival exceeds r * E: r is what it adds to the time of a
# round (a draft forward and a verified token), E the tokens of a round. With r = 0.1, one
# layer of some tens drafting, and E = 3. An estimate, not a measurement.
DEFAULT_THRESHOLD = 0.3

CONFIDENCE_ALPHA = 0.5
"""Weight of the latest chain: another prompt shows within two or three rounds."""

RECONCILE_ALPHA = 0.1
"""Weight of the latest round in what drafts were worth: a property of the model."""


def read_thresholds(path: Optional[str]) -> Dict[int, float]:
    """Survival threshold of every batch-size entry of the adaptive configuration.

    An entry's ``confidence_threshold`` goes before the file's, the file's before the
    default.

    Raises:
        ValueError: a threshold is no number between 0 and 1; the message names it.
    """
    cfg, entries = _load_adaptive_config(path)
    merged = {size: {**cfg, **entry} for size, entry in entries.items()}
    return {size: _threshold(size, entry) for size, entry in merged.items()}


def _threshold(size: int, entry: dict) -> float:
    value = entry.get(THRESHOLD_KEY, DEFAULT_THRESHOLD)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0.0 < value < 1.0:
        raise ValueError(
            f"--speculative-adaptive-config, BS {size}: {THRESHOLD_KEY} must be a number "
            f"between 0 and 1, got {value!r}."
        )
    return float(value)


def choose_steps(
    candidates: Sequence[int], survival: Sequence[float], threshold: float
) -> int:
    """The largest candidate whose last token survives, the smallest if none does.

    ``survival[i]``: probability that the tokens up to position ``i`` are all right.
    A chain of no steps always survives.
    """
    fitting = (s for s in candidates if s == 0 or survival[s - 1] >= threshold)
    return max(fitting, default=min(candidates))


class _Position:
    """What is known of one position of a chain."""

    def __init__(self) -> None:
        self.confidence: Optional[float] = None
        # Equal at first: probabilities are believed until rounds contradict them.
        self.predicted, self.accepted = 1.0, 1.0

    def estimate(self, confidence: float) -> float:
        """Expected acceptance at a confidence: what such drafts were worth so far."""
        return min(1.0, confidence * self.accepted / max(self.predicted, 1e-6))


class Estimator:
    """Expected survival of the next chain, from the chains that were verified."""

    def __init__(self, max_steps: int) -> None:
        self._positions = [_Position() for _ in range(max_steps)]
        self._seed: Optional[float] = None

    def observe(
        self,
        probability: Sequence[Sequence[float]],
        num_correct_drafts: Sequence[int],
        seeds: Sequence[float],
    ) -> None:
        """One round.

        Args:
            probability: ``[rows][steps]``, conditional probabilities of the verified
                chains; rows without steps if none were drafted.
            num_correct_drafts: accepted drafts of each row.
            seeds: probability of each row's next first token, empty if unknown.
        """
        steps = min(map(len, probability), default=0)
        for i, position in enumerate(self._positions[:steps]):
            column = [row[i] for row in probability]
            # Behind a rejected token the context is wrong, and acceptance unknown.
            reached = [j for j, n in enumerate(num_correct_drafts) if n >= i]
            if reached:
                column = [column[j] for j in reached]
                accepted = [float(num_correct_drafts[j] > i) for j in reached]
                position.predicted = _mixed(position.predicted, column, RECONCILE_ALPHA)
                position.accepted = _mixed(position.accepted, accepted, RECONCILE_ALPHA)
            position.confidence = _mixed(position.confidence, column, CONFIDENCE_ALPHA)
        self._forget(steps)
        self._seed = sum(seeds) / len(seeds) if seeds else None

    def _forget(self, steps: int) -> None:
        """Positions that were not drafted drift to the deepest one that was, so that a
        chain that was cut is tried again."""
        if steps == 0:
            return
        deepest = self._positions[steps - 1]
        for position in self._positions[steps:]:
            if position.confidence is not None:
                for name in ("confidence", "predicted", "accepted"):
                    value = [getattr(deepest, name)]
                    mixed = _mixed(getattr(position, name), value, CONFIDENCE_ALPHA)
                    setattr(position, name, mixed)

    def survival(self) -> Optional[List[float]]:
        """Expected survival of each position of the next chain; ``None`` before
        anything was observed."""
        survival, product, known = [], 1.0, None
        for i, position in enumerate(self._positions):
            if i == 0 and self._seed is not None:
                product = position.estimate(self._seed)
                known = (position, position.confidence or self._seed)
            else:
                if position.confidence is not None:
                    known = (position, position.confidence)
                if known is None:
                    return None
                product *= known[0].estimate(known[1])
            survival.append(product)
        return survival


def _mixed(old: Optional[float], values: Sequence[float], alpha: float) -> float:
    mean = sum(values) / len(values)
    return mean if old is None else (1.0 - alpha) * old + alpha * mean


class _Observation(NamedTuple):
    probability: List[List[float]]
    seeds: List[float]
    rows: Optional[Sequence[int]]


class ConfidencePolicy(AdaptiveSpeculativeParams):
    """Policy of an ``AdaptiveController``; candidates and batch sizes are read from the
    adaptive configuration, as upstream's policy reads them."""

    def __init__(
        self,
        initial_steps: int,
        cfg_path: Optional[str] = None,
        temperatures: Optional[torch.Tensor] = None,
    ):
        """``temperatures``: FP32 ``[positions]``, one for each step of the longest
        chain."""
        super().__init__(initial_steps, cfg_path)
        thresholds = read_thresholds(cfg_path)
        self._thresholds = {id(self._slots[size]): t for size, t in thresholds.items()}
        self._temperatures = temperatures
        self.settings = {
            "config": _load_adaptive_config(cfg_path)[0],
            "temperatures": None if temperatures is None else temperatures.tolist(),
        }
        """What the files held, to compare between hosts."""
        self._estimator = Estimator(max(self.candidate_steps))
        self._latest: Optional[_Observation] = None
        self._decided: Optional[AdaptiveStepSlot] = None
        self._to_probe: List[AdaptiveStepSlot] = []

    def get_steps_for_batch(self, batch_size: int) -> int:
        """Steps of the next round, chosen again where the batch size changes its slot."""
        slot = self._route(batch_size)
        survival = self._estimator.survival()
        if slot in self._to_probe:
            self._to_probe.remove(slot)
            self._decided = slot
        elif slot is not self._decided and survival is not None:
            # A batch of another size, after the last decision.
            slot.current_steps = self._choose(slot, survival)
            self._decided = slot
        return slot.current_steps

    def observe(self, result: Any, rows: Optional[Sequence[int]] = None) -> None:
        """Take the probabilities of a ``GenerationBatchResult`` on the CPU, before its
        accept lengths come in ``on_verify_complete``.

        ``rows``: those of requests that go on, all if ``None``. With overlap scheduling a
        finished request is verified once more, and says nothing about the next chain.
        """
        chain = self._calibrated(result.draft_probability, rows)
        seeds = self._calibrated(result.next_draft_probability, rows)
        flat = [seed for row in seeds for seed in row]
        self._latest = _Observation(chain, flat, rows)

    def on_verify_complete(
        self, num_correct_drafts_per_req: List[int], batch_size: int
    ) -> Optional[int]:
        """Learn from a verify, whose accepted drafts exclude the bonus token, and choose
        again; the new number of steps, or ``None`` where it stays."""
        slot, latest = self._route(batch_size), self._latest
        self._latest = None
        if latest is None:
            return None
        counts = num_correct_drafts_per_req
        if latest.rows is not None:
            counts = [counts[row] for row in latest.rows]
        if not counts:
            return None
        self._estimator.observe(latest.probability, counts, latest.seeds)
        before = slot.current_steps
        survival = self._estimator.survival()
        # Nothing is known while zero steps leave the draft out altogether
        # (SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND).
        chosen = before if survival is None else self._choose(slot, survival)
        slot.current_steps = self._probed(slot, chosen)
        self._decided = slot
        return slot.current_steps if slot.current_steps != before else None

    def _choose(self, slot: AdaptiveStepSlot, survival: List[float]) -> int:
        threshold = self._thresholds[id(slot)]
        return choose_steps(slot.candidate_steps, survival, threshold)

    def _probed(self, slot: AdaptiveStepSlot, chosen: int) -> int:
        """The smallest positive number of steps after an interval without drafts, as
        upstream does it: what is not tried cannot become trusted again."""
        slot._batch_count = slot._batch_count + 1 if chosen == 0 else 0
        if slot._batch_count < slot.update_interval or len(slot.candidate_steps) == 1:
            return chosen
        slot._batch_count = 0
        if slot not in self._to_probe:
            # Batches of other sizes may come before its next one.
            self._to_probe.append(slot)
        return slot.candidate_steps[1]

    def _calibrated(
        self, probability: Optional[torch.Tensor], rows: Optional[Sequence[int]]
    ) -> List[List[float]]:
        if probability is None:
            return []
        if rows is not None:
            probability = probability[list(rows)]
        if self._temperatures is not None:
            probability = calibrated(probability, self._temperatures)
        return probability.tolist()


def confidence_policy(initial_steps: int) -> ConfidencePolicy:
    """The policy that the ``--speculative-*`` arguments ask for."""
    spec = get_spec()
    config = spec.speculative_adaptive_config
    return ConfidencePolicy(initial_steps, config, server_temperatures(spec))
