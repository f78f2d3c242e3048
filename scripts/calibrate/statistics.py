"""Scores of predicted probabilities against outcomes, and the temperature that fits.

Plain arrays in, plain numbers out; nothing is read or measured here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

NUM_BINS = 15
# The range of SGLang's own fit (sglang.benchmark.dspark_sts_fit).
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.1, 10.0
# Fewer outcomes than this leave the temperature at 1. With this many, the fitted 1/T of a
# calibrated predictor still spreads by 0.4 to 0.6 (standard deviation of 400 draws of
# log-odds with means 0 to 1 and deviations 1 to 2).
MIN_SAMPLES = 40
_Z95 = 1.959964


@dataclass(frozen=True)
class Bin:
    """Outcomes whose predicted probability lies in [low, high): mean prediction, share
    of tokens taken, and its 95 % Wilson interval."""

    low: float
    high: float
    count: int
    predicted: float
    observed: float
    observed_low: float
    observed_high: float


@dataclass(frozen=True)
class Scores:
    """Of one position. All None when there was no outcome to score."""

    predicted: float | None
    observed: float | None
    brier: float | None
    ece: float | None
    nll: float | None
    bins: list[Bin]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Fit:
    """A temperature, how many outcomes it rests on, and why it is 1 where it was not
    fitted, or what limits it; None when it was fitted freely."""

    temperature: float
    samples: int
    note: str | None


def probabilities(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """`sigmoid(logit / T)`, FP64, without overflow."""
    return np.exp(-np.logaddexp(0.0, -logits / temperature))


def brier_score(predicted: np.ndarray, outcomes: np.ndarray) -> float:
    """Mean of (p - y)^2 (Brier, 1950); 0 is best."""
    return float(np.mean((predicted - outcomes) ** 2))


def reliability_bins(
    predicted: np.ndarray, outcomes: np.ndarray, num_bins: int = NUM_BINS
) -> list[Bin]:
    """Bins of equal width over [0, 1], the empty ones left out; 1.0 is in the last."""
    index = np.minimum((predicted * num_bins).astype(int), num_bins - 1)
    bins = []
    for place in np.unique(index):
        inside = index == place
        count, taken = int(inside.sum()), float(outcomes[inside].sum())
        low, high = wilson_interval(taken, count)
        bins.append(
            Bin(
                low=place / num_bins,
                high=(place + 1) / num_bins,
                count=count,
                predicted=float(predicted[inside].mean()),
                observed=taken / count,
                observed_low=low,
                observed_high=high,
            )
        )
    return bins


def expected_calibration_error(bins: list[Bin]) -> float:
    """Mean over outcomes of |predicted - observed| of their bin (Naeini et al., 2015)."""
    total = sum(one.count for one in bins)
    return sum(one.count * abs(one.predicted - one.observed) for one in bins) / total


def wilson_interval(taken: float, count: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson, 1927)."""
    share, spread = taken / count, _Z95**2 / count
    middle = (share + spread / 2) / (1 + spread)
    variance = share * (1 - share) / count + spread / (4 * count)
    half = _Z95 * np.sqrt(variance) / (1 + spread)
    return float(max(0.0, middle - half)), float(min(1.0, middle + half))


def negative_log_likelihood(
    logits: np.ndarray, outcomes: np.ndarray, temperature: float = 1.0
) -> float:
    """Mean -log of the probability given to what happened, in nats."""
    scaled = logits / temperature
    return float(np.mean(np.logaddexp(0.0, scaled) - outcomes * scaled))


def scores(
    logits: np.ndarray, outcomes: np.ndarray, temperature: float = 1.0
) -> Scores:
    """Every score of one position at a temperature."""
    if len(logits) == 0:
        return Scores(None, None, None, None, None, [])
    predicted = probabilities(logits, temperature)
    bins = reliability_bins(predicted, outcomes)
    return Scores(
        predicted=float(predicted.mean()),
        observed=float(outcomes.mean()),
        brier=brier_score(predicted, outcomes),
        ece=expected_calibration_error(bins),
        nll=negative_log_likelihood(logits, outcomes, temperature),
        bins=bins,
    )


def fit_temperature(
    logits: np.ndarray, outcomes: np.ndarray, min_samples: int = MIN_SAMPLES
) -> Fit:
    """The temperature of least negative log likelihood (Guo et al., 2017).

    The likelihood is concave in 1/T, so a bisection of its slope finds the optimum.
    """
    count = len(logits)
    if count < min_samples:
        return Fit(
            1.0, count, f"{count} outcomes, fewer than {min_samples}: not fitted"
        )
    if outcomes.min() == outcomes.max():
        what = "taken" if outcomes[0] else "refused"
        return Fit(1.0, count, f"all {what}: no temperature to fit")

    def slope(inverse: float) -> float:
        return float(np.sum((probabilities(logits * inverse) - outcomes) * logits))

    low, high = 1 / MAX_TEMPERATURE, 1 / MIN_TEMPERATURE
    if slope(low) >= 0:
        return Fit(MAX_TEMPERATURE, count, f"limited to {MAX_TEMPERATURE:g}")
    if slope(high) <= 0:
        return Fit(MIN_TEMPERATURE, count, f"limited to {MIN_TEMPERATURE:g}")
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return Fit(2 / (low + high), count, None)
