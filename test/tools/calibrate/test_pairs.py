"""Shards in, pairs out; and the positions that follow from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from scripts.calibrate.pairs import Pairs, read_pairs
from scripts.calibrate.positions import (
    accept_length_figures,
    fit_positions,
    position_figures,
)
from scripts.calibrate.statistics import Fit


def write_shard(path: Path, probability: list[list[float]], correct: list[int]) -> None:
    """A shard as SGLang's recorder writes it."""
    steps = len(probability[0])
    taken = torch.arange(steps)[None, :] < torch.tensor(correct)[:, None]
    shard = {
        "logits": torch.logit(torch.tensor(probability)),
        "prefix_mask": taken.float(),
    }
    torch.save(shard, path)


def chain(*, steps: int, rows: int, seed: int = 0) -> Pairs:
    """Chains whose tokens are taken with the probability given to them."""
    random = np.random.default_rng(seed)
    probability = random.uniform(0.3, 0.95, (rows, steps))
    taken = random.random((rows, steps)) < probability
    logits = np.log(probability / (1 - probability))
    return Pairs(logits, np.cumprod(taken, axis=1).sum(axis=1))


def test_only_chains_that_got_there(tmp_path: Path) -> None:
    """Red when a token behind a refused one counts as refused: the target never saw it
    in its place."""
    probabilities = [[0.75, 0.5, 0.25]] * 4
    write_shard(tmp_path / "run.steps3.0.pt", probabilities, [0, 1, 2, 3])
    pairs = read_pairs(str(tmp_path / "run.*.pt"))
    outcomes = [pairs.at(place)[1].tolist() for place in range(3)]
    assert outcomes == [[0, 1, 1, 1], [0, 1, 1], [0, 1]]
    assert pairs.at(1)[0] == pytest.approx(np.zeros(3), abs=1e-6)


def test_several_widths(tmp_path: Path) -> None:
    """Red when shards of other widths are dropped, or a short chain gets an outcome at a
    position that it has no draft for."""
    write_shard(tmp_path / "run.steps1.0.pt", [[0.5]], [1])
    write_shard(tmp_path / "run.steps3.0.pt", [[0.75, 0.5, 0.25]], [3])
    pairs = read_pairs(str(tmp_path / "run.*.pt"))
    assert len(pairs) == 2 and pairs.widths.tolist() == [1, 3]
    assert [len(pairs.at(place)[0]) for place in range(3)] == [2, 1, 1]
    figures = accept_length_figures(pairs, [Fit(1.0, 0, None)] * 3)
    assert figures["observed"] == pytest.approx((2 + 4) / 2)
    expected = (1 + 0.5 + 1 + 0.75 + 0.375 + 0.09375) / 2
    assert figures["expected"] == pytest.approx(expected)


def test_halves_of_replicas(tmp_path: Path) -> None:
    """Red when one replica's rows are the early half and another's the late one."""
    for replica in (0, 1):
        for number in (0, 1):
            path = tmp_path / f"run.dp{replica}.steps1.{number}.pt"
            write_shard(path, [[0.3 + 0.2 * replica + 0.1 * number]], [1])
    early, late = read_pairs(str(tmp_path / "run.*.pt")).halves()
    for half, values in ((early, [0.3, 0.5]), (late, [0.4, 0.6])):
        probability = 1 / (1 + np.exp(-half.at(0)[0]))
        assert probability == pytest.approx(values, abs=1e-6)


def test_halves_by_time(tmp_path: Path) -> None:
    """Red when shard 10 is read before shard 2, when halves overlap, or when one half
    has all rows of a width."""
    for number in (0, 2, 10):
        probability = 0.1 + 0.05 * number
        write_shard(tmp_path / f"run.steps1.{number}.pt", [[probability]] * 2, [0, 1])
    write_shard(tmp_path / "run.steps2.0.pt", [[0.5, 0.5]] * 4, [0, 1, 2, 2])
    early, late = read_pairs(str(tmp_path / "*.pt")).halves()
    assert len(early) == len(late) == 5
    assert sorted(early.widths) == sorted(late.widths) == [1, 1, 1, 2, 2]
    one = [1 / (1 + np.exp(-half.logits[:3, 0])) for half in (early, late)]
    assert one[0] == pytest.approx([0.1, 0.1, 0.2])
    assert one[1] == pytest.approx([0.2, 0.6, 0.6])


def test_calibrated_chains() -> None:
    """Red when a position's figures are those of another, or when chains that say the
    truth look wrong. 6000 chains leave a standard error under 0.03 at every position.
    """
    pairs = chain(steps=3, rows=6000)
    early, late = pairs.halves()
    figures = position_figures(late, fit_positions(early))
    assert [entry["position"] for entry in figures] == [1, 2, 3]
    for entry in figures:
        assert entry["predicted"] == pytest.approx(entry["observed"], abs=0.05)
        assert entry["temperature"] == pytest.approx(1.0, abs=0.25)
        assert entry["ece"] < 0.1
        assert sum(one["count"] for one in entry["bins"]) == entry["samples"]
    assert figures[0]["samples"] > figures[1]["samples"] > figures[2]["samples"] > 0
    length = accept_length_figures(pairs, fit_positions(early))
    assert length["expected"] == pytest.approx(length["observed"], abs=0.05)


def test_temperatures_reach_the_accept_length() -> None:
    """Red when the expected length after the fit ignores a position's temperature."""
    pairs = Pairs(np.array([[2.0, 2.0]]), np.array([2]))
    figures = accept_length_figures(pairs, [Fit(1.0, 0, None), Fit(2.0, 0, None)])
    first, second = 1 / (1 + np.exp(-2.0)), 1 / (1 + np.exp(-1.0))
    assert figures["expected_after"] == pytest.approx(1 + first + first * second)


def test_no_shards(tmp_path: Path) -> None:
    """Red when a pattern without files gives a traceback, or not what to do."""
    with pytest.raises(ValueError, match="SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH"):
        read_pairs(str(tmp_path / "none.*.pt"))


def test_wrong_width(tmp_path: Path) -> None:
    """Red when chains of another server's length are mixed in."""
    write_shard(tmp_path / "run.steps3.0.pt", [[0.5, 0.5, 0.5]], [1])
    with pytest.raises(ValueError, match="3 drafts, more than --num-steps 2"):
        read_pairs(str(tmp_path / "run.*.pt"), num_steps=2)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"not a shard", "UnpicklingError"),
        ({"logits": torch.zeros(2, 3)}, "prefix_mask"),
        ({"logits": torch.zeros(2, 3), "prefix_mask": torch.zeros(2, 2)}, "shapes"),
        (
            {"logits": torch.full((1, 1), torch.inf), "prefix_mask": torch.ones(1, 1)},
            "finite",
        ),
    ],
    ids=["bytes", "field", "shape", "infinite"],
)
def test_not_a_shard(content: object, reason: str, tmp_path: Path) -> None:
    """Red when a file that is no shard gives a traceback without its name."""
    path = tmp_path / "run.steps3.0.pt"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(ValueError, match=reason) as caught:
        read_pairs(str(path))
    assert str(path) in str(caught.value)
