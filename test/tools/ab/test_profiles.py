"""The profiles that the kit brings, and their servers' command lines."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from scripts.ab.launch import Launch
from scripts.ab.plan import make_load, make_points, make_starts, sides_of
from scripts.ab.profile import load_profile, profile_names
from scripts.serving.arms import FLAG


@pytest.fixture(scope="module")
def server_parser() -> argparse.ArgumentParser:
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    return parser


@pytest.mark.parametrize("name", profile_names())
@pytest.mark.parametrize("arm", ["dense", "packed"])
def test_the_pinned_launcher_takes_the_arguments(
    name: str, arm: str, server_parser: argparse.ArgumentParser
) -> None:
    """Red when a profile uses a flag that the pinned release does not have."""
    profile = load_profile(name)
    launch = Launch(profile, profile.model or "model", None, None)
    args = ["--model-path", str(launch.model), *launch.server_args(arm)]
    parsed, unknown = server_parser.parse_known_args(args)
    assert unknown == []
    assert (
        parsed.speculative_vocab_parallel_draft == {"dense": "off", "packed": "on"}[arm]
    )
    assert parsed.tp_size == profile.tp and parsed.speculative_algorithm
    assert args.count(FLAG) == 1


def test_profiles_of_the_issue() -> None:
    """Red when one of the promised configurations is missing."""
    titles = " ".join(load_profile(name).title for name in profile_names())
    for word in ("Qwen3.5-27B FP8, TP4", "NextN", "EAGLE3", "DSpark", "Xeon", "Small"):
        assert word in titles
    headline = load_profile("qwen3.5-27b-fp8-tp4")
    assert list(headline.concurrency) == [1, 2, 4, 8, 16, 32, 64]
    assert (headline.input_tokens, headline.output_tokens) == (256, 1024)
    assert headline.pairs == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrency": [1]}, "one number of requests"),
        ({"concurrency": [1, 1, 2, 4]}, "named twice"),
        ({"pairs": 0}, "pairs 0"),
        ({"tp": -1}, "tp -1"),
        ({"clients": ["curl"]}, "choose from sglang, aiperf"),
        ({"engine": "tpu"}, "engine"),
        ({"engine": "gpu"}, "makes its own model"),
    ],
)
def test_bad_settings(changes: dict, message: str) -> None:
    """Red when settings that cannot work start a server."""
    with pytest.raises(ValueError, match=message):
        load_profile("cpu-small", **changes)


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    """Red when a copied and edited profile is not found, or a typo in it passes."""
    path = tmp_path / "mine.toml"
    path.write_text('title = "t"\nengine = "gpu"\ntp = 2\nmodel = "a/b"\n')
    assert load_profile(str(path)).name == "mine"
    path.write_text(path.read_text() + "pears = 4\n")
    with pytest.raises(ValueError, match="unknown settings pears"):
        load_profile(str(path))
    path.write_text('title = "t"\n')
    with pytest.raises(ValueError, match="engine"):
        load_profile(str(path))
    path.write_text("title = \n")
    with pytest.raises(ValueError, match="mine.toml"):
        load_profile(str(path))


def test_order_of_starts() -> None:
    """Red when one side always comes first, so that a drift counts for it."""
    starts = make_starts(3, sides_of(null=False))
    assert "".join(s.side[0] for s in starts) == "dppddp"
    assert [s.pair for s in starts] == [0, 0, 1, 1, 2, 2]
    null = make_starts(1, sides_of(null=True))
    assert {s.arm for s in null} == {"dense"} and len({s.folder for s in null}) == 2


def test_loads_of_a_pair_are_the_same() -> None:
    """Red when the sides of a pair get different prompts, or two points the same."""
    profile = load_profile("cpu-small")
    starts, points = make_starts(2, sides_of(null=False)), make_points(profile)
    loads = [[make_load(profile, start, point) for point in points] for start in starts]
    assert loads[0] == loads[1] and loads[2] == loads[3]
    assert len({load.seed for row in (loads[0], loads[2]) for load in row}) == 8
    assert [load.requests for load in loads[0]] == list(profile.requests)
