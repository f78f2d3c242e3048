"""What is going to be run, in which order; no input or output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.ab.clients import Load
from scripts.ab.profile import Profile
from scripts.serving.arms import ARMS

AGAIN = "dense-again"


@dataclass(frozen=True)
class Start:
    """One server start. `side` is what the report calls it, `arm` what it serves."""

    index: int
    pair: int
    side: str
    arm: str

    @property
    def folder(self) -> str:
        """Name of its folder of raw records."""
        return f"{self.index:02d}-{self.side}"


@dataclass(frozen=True)
class Point:
    """One run within a server start."""

    client: str
    concurrency: int

    @property
    def name(self) -> str:
        """Name of its record."""
        return f"{self.client}-c{self.concurrency:03d}"


def sides_of(null: bool) -> tuple[str, str]:
    """The control and the candidate; in a null run the control is measured twice."""
    return (ARMS[0], AGAIN) if null else (ARMS[0], ARMS[1])


def make_starts(pairs: int, sides: Sequence[str]) -> list[Start]:
    """A B B A A B ...: what drifts with time hits both sides alike."""
    starts = []
    for pair in range(pairs):
        for side in sides if pair % 2 == 0 else reversed(sides):
            arm = ARMS[0] if side == AGAIN else side
            starts.append(Start(len(starts), pair, side, arm))
    return starts


def make_points(profile: Profile) -> list[Point]:
    """Every run of one server start; clients take turns at each concurrency."""
    return [
        Point(client, level)
        for level in profile.concurrency
        for client in profile.clients
    ]


def make_load(profile: Profile, start: Start, point: Point) -> Load:
    """The load of a point. Both sides of a pair get the same seed; no two points of a
    start do, so that no prompt comes twice to a prefix cache."""
    requests = profile.requests[list(profile.concurrency).index(point.concurrency)]
    return Load(
        concurrency=point.concurrency,
        requests=requests,
        input_tokens=profile.input_tokens,
        output_tokens=profile.output_tokens,
        seed=profile.seed + 1000 * start.pair + point.concurrency,
        dataset=Path(profile.dataset) if profile.dataset else None,
    )
