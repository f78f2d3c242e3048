"""When a difference is one: the statistical rule of the kit, on plain numbers.

A pair is one server start of each side, next to each other in time. Its ratio is candidate
over control. The logarithms of the ratios of the pairs give a mean and, with Student's t for
(pairs - 1) degrees of freedom, a 95 % interval. An interval that contains 1, or fewer than
three pairs, is no difference shown. A percentile bootstrap would not do: of three pairs it
draws no interval wider than the ratios themselves, which miss the true ratio one time in four.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Any

MIN_PAIRS = 3
LEVEL = 0.95
HIGHER, LOWER, NONE = "higher", "lower", "no difference shown"
RULE = (
    "A pair is one server start of each side. Ratios (candidate over control) are averaged "
    "geometrically over the pairs; the interval is Student's t on their logarithms, 95 %. "
    "A difference is reported only when the interval excludes 1 and there are at least "
    f"{MIN_PAIRS} pairs. A single concurrency is called different only when it also passes "
    "Holm's correction over all concurrencies of that client; the verdict rests on the "
    "geometric mean over all concurrencies of each pair, which is one test for each client."
)


@dataclass(frozen=True)
class Estimate:
    """A ratio over pairs. Without two pairs there is no interval and no p-value."""

    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    pairs: list[float]
    finding: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def geometric_mean(values: Sequence[float]) -> float:
    """ValueError for an empty sequence or a value that is not positive."""
    return math.exp(fmean(math.log(value) for value in values))


@cache
def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t."""
    from scipy.stats import t

    return float(t.ppf(probability, freedom))


def t_two_sided(statistic: float, freedom: int) -> float:
    """Probability of a statistic at least this far from 0."""
    from scipy.stats import t

    return float(2 * t.sf(abs(statistic), freedom))


def compare(control: Sequence[float], candidate: Sequence[float]) -> Estimate:
    """The estimate over paired samples, at the same place in both; positive numbers."""
    ratios = [b / a for a, b in zip(control, candidate, strict=True)]
    return estimate(ratios)


def estimate(ratios: Sequence[float]) -> Estimate:
    """The estimate over the ratios of the pairs. ValueError without one."""
    count = len(ratios)
    ratio = geometric_mean(ratios)
    if count < 2:
        return Estimate(ratio, None, None, None, list(ratios), NONE)
    mean = math.log(ratio)
    error = stdev(math.log(r) for r in ratios) / math.sqrt(count)
    half = t_quantile((1 + LEVEL) / 2, count - 1) * error
    low, high = math.exp(mean - half), math.exp(mean + half)
    if error == 0:
        p_value = 1.0 if mean == 0 else 0.0
    else:
        p_value = t_two_sided(mean / error, count - 1)
    finding = NONE
    if count >= MIN_PAIRS and not low <= 1 <= high:
        finding = HIGHER if ratio > 1 else LOWER
    return Estimate(ratio, low, high, p_value, list(ratios), finding)


def holm(estimates: Sequence[Estimate]) -> list[str]:
    """The findings that are left after Holm's step-down correction, in the same order."""
    findings = [NONE] * len(estimates)
    tested = sorted(
        (i for i, e in enumerate(estimates) if e.p_value is not None),
        key=lambda i: estimates[i].p_value,
    )
    for rank, i in enumerate(tested):
        if estimates[i].p_value > (1 - LEVEL) / (len(tested) - rank):
            break
        findings[i] = estimates[i].finding
    return findings
