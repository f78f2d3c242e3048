"""The statistical rule of `make ab`, on plain and on recorded numbers."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from scripts.ab.stats import (
    HIGHER,
    LOWER,
    NONE,
    compare,
    estimate,
    geometric_mean,
    holm,
    t_quantile,
)

RECORDED = json.loads((Path(__file__).parent / "recorded_null.json").read_text())


def overall(candidate_factor: float = 1.0):
    """The estimate over all concurrencies of a recorded null run, as the verdict takes
    it, with the candidate's throughput multiplied."""
    ratios = [
        geometric_mean(
            [
                candidate_factor * pair["dense-again"][c] / pair["dense"][c]
                for c in pair["dense"]
            ]
        )
        for pair in RECORDED["pairs"]
    ]
    return estimate(ratios)


def test_recorded_null_run_shows_no_difference() -> None:
    """Red when the same arm on both sides is called a win or a loss."""
    found = overall()
    assert len(found.pairs) >= 3
    assert found.finding == NONE and found.low < 1 < found.high


@pytest.mark.parametrize(("factor", "finding"), [(0.9, LOWER), (1 / 0.9, HIGHER)])
def test_planted_slowdown_is_found(factor: float, finding: str) -> None:
    """Red when 10 % on top of recorded noise is lost, or its direction is."""
    found = overall(factor)
    assert found.finding == finding
    assert (found.high < 1) if finding == LOWER else (found.low > 1)


def test_interval_of_known_numbers() -> None:
    """Red when the interval is not Student's t on logarithms: 2.776 for 4 degrees of
    freedom, a hand-computed standard error."""
    logs = [0.02, 0.04, 0.06, 0.08, 0.10]
    found = estimate([math.exp(x) for x in logs])
    half = 2.776445 * math.sqrt(0.001 / 5)
    assert found.ratio == pytest.approx(math.exp(0.06))
    assert found.low == pytest.approx(math.exp(0.06 - half), rel=1e-6)
    assert found.high == pytest.approx(math.exp(0.06 + half), rel=1e-6)
    assert t_quantile(0.975, 2) == pytest.approx(4.302653, rel=1e-6)


def test_false_findings_are_as_rare_as_promised() -> None:
    """Red for a rule such as a percentile bootstrap, which errs in a quarter of null
    comparisons of three pairs; 5 % of 2000 is 100, and 4 standard deviations are 39."""
    source = random.Random(11)
    found = [
        estimate([math.exp(source.gauss(0, 0.05)) for _ in range(3)]).finding
        for _ in range(2000)
    ]
    wrong = sum(one != NONE for one in found)
    assert 61 <= wrong <= 139


@pytest.mark.parametrize("ratios", [[1.3], [1.3, 1.3], [1.3, 1.31]])
def test_too_few_pairs_show_nothing(ratios: list[float]) -> None:
    """Red when one or two pairs are enough for a claim."""
    assert estimate(ratios).finding == NONE


def test_equal_pairs() -> None:
    """Red when no spread at all is a division by zero."""
    assert estimate([1.0, 1.0, 1.0]).finding == NONE
    assert estimate([1.1, 1.1, 1.1]).finding == HIGHER


def test_compare_is_candidate_over_control() -> None:
    """Red when a ratio is upside down or pairs are mixed up."""
    found = compare([10.0, 20.0, 40.0], [11.0, 24.0, 44.0])
    assert found.pairs == pytest.approx([1.1, 1.2, 1.1])
    with pytest.raises(ValueError):
        compare([1.0, 2.0], [1.0])


def test_holm_keeps_what_survives() -> None:
    """Red when many concurrencies are tested as if each were the only one."""
    sure = estimate([1.20, 1.201, 1.199])
    weak = estimate([1.03, 1.06, 1.045])
    assert sure.finding == HIGHER and weak.finding == HIGHER
    noise = estimate([0.9, 1.1, 1.0])
    assert weak.p_value > 0.05 / 3
    assert holm([noise, weak, sure, noise]) == [NONE, NONE, HIGHER, NONE]
    assert holm([weak]) == [HIGHER]
