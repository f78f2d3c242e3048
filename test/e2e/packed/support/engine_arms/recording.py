"""Everything that one arm answered and did, recorded once and kept as files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from collective_counter import RankCounters, read_settled_counters, subtract
from draft_recorder import Event, read_events

from engine_arms.arms import Arm, Running, draft_status, launch
from engine_arms.client import Answer, ask, ask_all, ask_streamed
from engine_arms.disturbances import leaving_clients, paused_rank
from engine_arms.scenarios import AFTER, SCENARIOS, Scenario, body, prompts, with_rids

# Scenarios whose collectives are counted.
COUNTED = ("alone", "together")
_FILE = "recording.json"


@dataclass(frozen=True)
class Recording:
    """What an arm did. `events` are per rank, `counters` per counted scenario."""

    arm: str
    answers: dict[str, list[Answer]]
    seconds: dict[str, float]
    status: dict[str, Any] | None
    log: str
    events: list[list[Event]]
    counters: dict[str, list[RankCounters]]

    def ids(self, name: str) -> list[list[int]]:
        """Output ids of a scenario's answers; KeyError when one has none."""
        return [answer["output_ids"] for answer in self.answers[name]]


def record(arm: Arm, folder: Path, disturbed: bool = True) -> Recording:
    """Start the arm's server, ask everything, stop it. `disturbed` adds clients that
    leave and ranks that pause."""
    answers: dict[str, list[Answer]] = {}
    counters: dict[str, list[RankCounters]] = {}
    seconds: dict[str, float] = {}
    with _timed(seconds, "start to end"), launch(arm, folder) as running:
        seconds["start"] = running.server.start_s
        ask(running.url, body(prompts(1, 16, seed=50)[0], rid="first"))
        for scenario in SCENARIOS:
            with _timed(seconds, scenario.name):
                answers[scenario.name] = _run(running, scenario, answers, counters)
        if disturbed:
            _disturb(running, answers, seconds)
        status = draft_status(running.url)
        running.server.check_alive()
        log = running.server.log_text()
    saved = {"answers": answers, "seconds": seconds, "status": status, "log": log}
    tables = {name: list(map(_to_json, ranks)) for name, ranks in counters.items()}
    (folder / _FILE).write_text(json.dumps(saved | {"counters": tables}))
    return load(arm, folder)


def load(arm: Arm, folder: Path) -> Recording:
    """A recording that `record` left; FileNotFoundError when there is none."""
    saved = json.loads((folder / _FILE).read_text())
    tables = saved.pop("counters")
    counters = {name: list(map(_from_json, ranks)) for name, ranks in tables.items()}
    events = read_events(folder / "events")
    return Recording(arm=arm.name, counters=counters, events=events, **saved)


def _to_json(rank: RankCounters) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in vars(rank).items()}


def _from_json(table: dict[str, Any]) -> RankCounters:
    arrays = {k: np.array(v) if isinstance(v, list) else v for k, v in table.items()}
    return RankCounters(**arrays)


def _run(
    running: Running,
    scenario: Scenario,
    earlier: dict[str, list[Answer]],
    counters: dict[str, list[RankCounters]],
) -> list[Answer]:
    bodies = with_rids(scenario.name, scenario.bodies(earlier))
    if scenario.name not in COUNTED:
        return _send(running.url, scenario, bodies)
    before = read_settled_counters(running.counters)
    answers = _send(running.url, scenario, bodies)
    after = read_settled_counters(running.counters)
    counters[scenario.name] = subtract(after, before)
    return answers


def _send(url: str, scenario: Scenario, bodies: list[dict]) -> list[Answer]:
    if not scenario.streamed:
        return ask_all(url, bodies, scenario.concurrency)
    with ThreadPoolExecutor(scenario.concurrency) as pool:
        return list(pool.map(lambda item: ask_streamed(url, item), bodies))


def _disturb(
    running: Running, answers: dict[str, list[Answer]], seconds: dict[str, float]
) -> None:
    steps: dict[str, Callable[[], list[Answer]]] = {
        "staying": lambda: leaving_clients(running.url),
        "paused1": lambda: paused_rank(running.url, running.server.pid, 1),
        "paused0": lambda: paused_rank(running.url, running.server.pid, 0),
        AFTER.name: lambda: _run(running, AFTER, answers, {}),
    }
    for name, step in steps.items():
        with _timed(seconds, name):
            answers[name] = step()


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[name] = time.monotonic() - start
