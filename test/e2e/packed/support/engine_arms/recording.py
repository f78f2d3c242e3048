"""Everything that one arm answered and did, recorded once and kept as files."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
from collective_counter import RankCounters, read_settled_counters, subtract
from draft_recorder import Event, read_events

from engine_arms.arms import Arm, Running, draft_status, launch
from engine_arms.client import Answer, ask, ask_all, ask_streamed
from engine_arms.disturbances import leaving_clients, paused_rank
from engine_arms.scenarios import AFTER, SCENARIOS, Scenario, body, prompts, with_rids
from scripts.serving.client import RequestFailed

# Scenarios whose collectives are counted.
COUNTED = ("alone", "together")
# SGLang waits some seconds between a rank's crash and its own end.
DEATH_S = 20.0
_FILE = "recording.json"


@dataclass(frozen=True)
class Recording:
    """What an arm did. `events` are per rank, `counters` per counted scenario."""

    arm: str
    answers: dict[str, list[Answer]] = field(repr=False)
    seconds: dict[str, float] = field(repr=False)
    status: dict[str, Any] | None
    log: str = field(repr=False)
    events: list[list[Event]] = field(repr=False)
    counters: dict[str, list[RankCounters]] = field(repr=False)

    def ids(self, name: str) -> list[list[int]]:
        """Output ids of a scenario's answers; KeyError when one has none."""
        return [answer["output_ids"] for answer in self.answers[name]]


def record(
    arm: Arm,
    folder: Path,
    *,
    scenarios: Sequence[Scenario] = SCENARIOS,
    disturbed: bool = True,
    **options: Any,
) -> Recording:
    """Start the arm's server, ask everything, stop it. `disturbed` adds clients that
    leave and ranks that pause; `options` are those of `launch`."""
    answers: dict[str, list[Answer]] = {}
    counters: dict[str, list[RankCounters]] = {}
    seconds: dict[str, float] = {}
    with (
        _timed(seconds, "start to end"),
        launch(arm, folder, **options) as running,
        _reason_of_death(running),
    ):
        seconds["start"] = running.server.start_s
        ask(running.url, body(prompts(1, 16, seed=50)[0], rid="first"))
        steps = {
            s.name: partial(_run, running, s, answers, counters) for s in scenarios
        }
        if disturbed:
            steps |= _disturbances(running)
            steps[AFTER.name] = partial(_run, running, AFTER, answers, counters)
        for name, step in steps.items():
            with _timed(seconds, name):
                answers[name] = step()
            _check_served(name, answers[name])
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


def _disturbances(running: Running) -> dict[str, Callable[[], list[Answer]]]:
    session = running.server.pid
    return {
        "staying": partial(leaving_clients, running.url),
        "paused1": partial(paused_rank, running.url, session, 1),
        "paused0": partial(paused_rank, running.url, session, 0),
    }


def _check_served(name: str, answers: Sequence[Answer]) -> None:
    """RequestFailed unless every request was answered or refused as a bad one."""
    for index, answer in enumerate(answers):
        error = answer.get("error", "")
        if error and not error.startswith("HTTP 400"):
            raise RequestFailed(f"{name}/{index}: {error}")


@contextmanager
def _reason_of_death(running: Running) -> Iterator[None]:
    """ServerError with the server's own reason instead of a failed request, when the
    server ends soon after it."""
    try:
        yield
    except (RequestFailed, OSError, HTTPException):
        deadline = time.monotonic() + DEATH_S
        while time.monotonic() < deadline:
            running.server.check_alive()
            time.sleep(0.5)
        raise


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[name] = time.monotonic() - start
