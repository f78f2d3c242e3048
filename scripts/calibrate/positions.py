"""Every position of a chain: predicted and observed, before and after its temperature."""

from __future__ import annotations

from typing import Any

import numpy as np

from scripts.calibrate.pairs import Pairs
from scripts.calibrate.statistics import (
    Fit,
    fit_temperature,
    probabilities,
    scores,
)


def fit_positions(pairs: Pairs) -> list[Fit]:
    """A temperature for each position of the longest chain."""
    return [fit_temperature(*pairs.at(place)) for place in range(pairs.positions)]


def position_figures(pairs: Pairs, fits: list[Fit]) -> list[dict[str, Any]]:
    """One entry a position, counted from 1, scored on `pairs`.

    `predicted`, `observed`, `brier`, `ece`, `nll` and `bins` are those of the exact
    probability; the same under `after` with the temperature.
    """
    figures = []
    for place, fit in enumerate(fits):
        logits, outcomes = pairs.at(place)
        entry = {"position": place + 1, "samples": len(logits)}
        entry |= scores(logits, outcomes).to_dict()
        entry["temperature"] = fit.temperature
        entry["fit"] = {"samples": fit.samples, "note": fit.note}
        entry["after"] = scores(logits, outcomes, fit.temperature).to_dict()
        figures.append(entry)
    return figures


def accept_length_figures(pairs: Pairs, fits: list[Fit]) -> dict[str, float | None]:
    """Mean accept length, bonus token included: observed, and as the chains' survival
    predicts it without and with the temperatures."""
    if not len(pairs):
        return {"observed": None, "expected": None, "expected_after": None}
    temperatures = np.array([fit.temperature for fit in fits])
    return {
        "observed": float(1 + pairs.correct.mean()),
        "expected": _expected(pairs.logits, np.ones_like(temperatures)),
        "expected_after": _expected(pairs.logits, temperatures),
    }


def _expected(logits: np.ndarray, temperatures: np.ndarray) -> float:
    # Past its own drafts a chain cannot go on: survival 0.
    drafted = ~np.isnan(logits)
    chance = np.where(drafted, probabilities(np.nan_to_num(logits) / temperatures), 0.0)
    return float(1 + np.cumprod(chance, axis=1).sum(axis=1).mean())
