"""Scores and the fitted temperature on outcomes whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scripts.calibrate import statistics
from scripts.calibrate.statistics import (
    MAX_TEMPERATURE,
    MIN_SAMPLES,
    MIN_TEMPERATURE,
    brier_score,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
    probabilities,
    reliability_bins,
    scores,
    wilson_interval,
)


def synthetic(
    count: int, temperature: float, seed: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Log-odds of a predictor, and outcomes drawn with them over `temperature`."""
    random = np.random.default_rng(seed)
    logits = random.normal(0.5, 2.0, count)
    truth = 1 / (1 + np.exp(-logits / temperature))
    return logits, (random.random(count) < truth) * 1.0


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
def test_fit_finds_the_temperature(temperature: float) -> None:
    """Red when the fit multiplies where it should divide, or stops early. 20000 outcomes
    leave a standard error of about 2 %."""
    fit = fit_temperature(*synthetic(20000, temperature))
    assert fit.note is None and fit.samples == 20000
    assert fit.temperature == pytest.approx(temperature, rel=0.1)


def test_fit_is_the_optimum() -> None:
    """Red when a neighbouring temperature explains the outcomes better."""
    logits, outcomes = synthetic(500, 1.7)
    best = fit_temperature(logits, outcomes).temperature
    losses = [
        negative_log_likelihood(logits, outcomes, best * factor)
        for factor in (0.99, 1.0, 1.01)
    ]
    assert losses[1] < min(losses[0], losses[2])


def test_fit_mends_an_overconfident_predictor() -> None:
    """Red when the temperature makes scores worse on outcomes that it was not fitted on."""
    fit = fit_temperature(*synthetic(4000, 2.5, seed=1))
    fresh = synthetic(4000, 2.5, seed=2)
    before, after = scores(*fresh), scores(*fresh, fit.temperature)
    assert after.ece < 0.5 * before.ece
    assert after.brier < before.brier and after.nll < before.nll
    assert after.predicted == pytest.approx(after.observed, abs=0.03)


def test_nothing_to_fit() -> None:
    """Red when a temperature is made up from too few, equal or no outcomes."""
    logits, outcomes = synthetic(MIN_SAMPLES - 1, 2.0)
    few = fit_temperature(logits, outcomes)
    assert few.temperature == 1.0 and f"fewer than {MIN_SAMPLES}" in few.note
    empty = fit_temperature(np.array([]), np.array([]))
    assert empty.temperature == 1.0 and empty.note.startswith("0 outcomes")
    logits, _ = synthetic(100, 2.0)
    for value, word in ((1.0, "taken"), (0.0, "refused")):
        same = fit_temperature(logits, np.full(100, value))
        assert same.temperature == 1.0 and word in same.note


def test_fit_is_limited() -> None:
    """Red when outcomes that contradict the predictor give a negative or huge number."""
    logits, outcomes = synthetic(400, 1.0)
    contrary = fit_temperature(logits, 1 - outcomes)
    assert contrary.temperature == MAX_TEMPERATURE and "limited" in contrary.note
    separated = fit_temperature(logits, (logits > 0) * 1.0)
    assert separated.temperature == MIN_TEMPERATURE and "limited" in separated.note


def test_scores_by_hand() -> None:
    """Red when a bin, its weight, or the square is wrong: two bins of 15, errors 0.1 and
    0.3, three outcomes and one."""
    predicted = np.array([0.9, 0.9, 0.9, 0.3])
    outcomes = np.array([1.0, 1.0, 1.0, 0.0])
    bins = reliability_bins(predicted, outcomes)
    assert [(one.count, one.observed) for one in bins] == [(1, 0.0), (3, 1.0)]
    assert expected_calibration_error(bins) == pytest.approx((3 * 0.1 + 0.3) / 4)
    assert brier_score(predicted, outcomes) == pytest.approx((3 * 0.01 + 0.09) / 4)


def test_ends_of_the_range() -> None:
    """Red when a probability of exactly 1 falls out of the last bin, or 0 of the first."""
    bins = reliability_bins(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    assert [(one.low, one.high) for one in bins] == [
        (0.0, 1 / statistics.NUM_BINS),
        (14 / statistics.NUM_BINS, 1.0),
    ]


def test_large_log_odds() -> None:
    """Red when log-odds of a certain token overflow: they reach 87."""
    logits = np.array([-87.3, 87.3, 0.0])
    got = probabilities(logits, MIN_TEMPERATURE)
    assert np.isfinite(got).all() and got[2] == 0.5
    loss = negative_log_likelihood(logits, np.array([1.0, 1.0, 1.0]))
    assert loss == pytest.approx((87.3 + math.log(2)) / 3, rel=1e-6)


def test_an_empty_position() -> None:
    """Red when a position without outcomes gets figures."""
    got = scores(np.array([]), np.array([]))
    assert got.to_dict() == {
        "predicted": None,
        "observed": None,
        "brier": None,
        "ece": None,
        "nll": None,
        "bins": [],
    }


def test_wilson_interval() -> None:
    """Red when it leaves [0, 1] or differs from the published 10 of 10 and 5 of 10."""
    assert wilson_interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
