"""Comparisons of runs; no input or output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.demo.measure import ArmRun, Phase
from scripts.serving.spread import Spread


def phases_of(
    runs: Sequence[ArmRun], arm: str, concurrency: int | None = None
) -> list[Phase]:
    """All phases of an arm, over all its server starts."""
    return [
        phase
        for run in runs
        if run.arm == arm
        for phase in run.phases
        if concurrency is None or phase.concurrency == concurrency
    ]


def speedup(dense: Spread, packed: Spread) -> float:
    """Ratio of medians, packed over dense."""
    return packed.median / dense.median


@dataclass(frozen=True)
class Agreement:
    """Whether every run gave the same answers. `requests` were compared; `differing`
    names (concurrency, prompt index) of those that did not agree."""

    requests: int
    differing: list[tuple[int, int]]

    @property
    def identical(self) -> bool:
        """False also when nothing was compared."""
        return self.requests > 0 and not self.differing


def compare_outputs(runs: Sequence[ArmRun]) -> Agreement:
    """Output ids of each request against those of every other run and arm."""
    return _compare(runs, lambda completion: tuple(completion.output_ids))


def compare_accept_lengths(runs: Sequence[ArmRun]) -> Agreement:
    """Accept length of each request against those of every other run and arm."""
    return _compare(runs, lambda completion: completion.accept_length)


def _compare(runs: Sequence[ArmRun], key) -> Agreement:
    seen: dict[tuple[int, int], set] = {}
    for run in runs:
        for phase in run.phases:
            for index, completion in enumerate(phase.completions):
                # A failed request has no answer: it differs from any that has one.
                answer = None if completion.error else key(completion)
                seen.setdefault((phase.concurrency, index), set()).add(answer)
    differing = [
        place for place, answers in seen.items() if len(answers) > 1 or None in answers
    ]
    return Agreement(requests=len(seen), differing=sorted(differing))


def mean_accept_length(phases: Sequence[Phase]) -> float | None:
    """Output tokens per verify round over all requests; bonus token included."""
    rounds = sum(c.verify_rounds or 0 for p in phases for c in p.completions)
    tokens = sum(p.output_tokens for p in phases)
    return tokens / rounds if rounds else None
