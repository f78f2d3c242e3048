"""One server start: warm-up, then every phase, with counters and memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collective_counter import (
    SCOPES,
    DraftFigures,
    draft_figures,
    read_settled_counters,
    subtract,
)
from scripts.demo.settings import Settings
from scripts.serving import (
    Completion,
    PssSampler,
    Server,
    ServerCommand,
    complete_all,
    cpu_engine,
    free_port,
)
from scripts.serving.client import get_json
from scripts.serving.status import Say, Ticker, find_draft_path


@dataclass(frozen=True)
class Phase:
    """Requests at one concurrency, `round` counting from 0 within the server."""

    concurrency: int
    round: int
    seconds: float
    completions: list[Completion]
    figures: DraftFigures
    calls_by_scope: dict[str, dict[str, int]]

    @property
    def output_tokens(self) -> int:
        return sum(len(c.output_ids) for c in self.completions)

    @property
    def output_tok_per_s(self) -> float:
        """Output tokens of all requests over the phase's wall time."""
        return self.output_tokens / self.seconds

    @property
    def proposed_tokens(self) -> int:
        """Draft tokens that verify rounds looked at."""
        return sum(c.proposed_drafts or 0 for c in self.completions)

    @property
    def errors(self) -> list[str]:
        return [c.error for c in self.completions if c.error is not None]


@dataclass(frozen=True)
class ArmRun:
    """Everything measured during one server start."""

    arm: str
    index: int
    start_s: float
    peak_pss_mib: float
    command: list[str]
    sglang_version: str
    draft_path: Any
    phases: list[Phase]


def run_arm(
    settings: Settings,
    arm: str,
    index: int,
    prompts: Sequence[Sequence[int]],
    say: Say,
) -> ArmRun:
    """Start a server for `arm`, measure every phase, stop it.

    Raises ServerError when it does not start or dies, ValueError for bad input.
    """
    label = f"[{index + 1}/{len(settings.order)} {arm}]"
    counter_dir = settings.out / "counters" / f"{index}-{arm}"
    for stale in counter_dir.glob("rank*.bin"):
        stale.unlink()
    command = ServerCommand(
        model_path=settings.model_path,
        args=settings.server_args(arm),
        port=settings.port or free_port(),
        log_path=settings.out / f"server-{index}-{arm}.log",
        env=cpu_engine.environment(settings.tp, counter_dir),
        python_path=cpu_engine.python_path(settings.fork),
    )
    say(f"{label} starting the server, log in {command.log_path}")
    server = Server(command, settings.ready_timeout_s)
    try:
        server.start()
        with PssSampler(server.pid) as memory:
            server.wait_ready(Ticker(label, say))
            say(f"{label} ready after {server.start_s:.0f} s; warming up")
            _warm_up(server, settings, prompts)
            phases = _run_phases(server, settings, prompts, counter_dir, say)
            memory.sample()
            info = get_json(f"{server.url}/server_info")
    finally:
        server.stop()
    return ArmRun(
        arm=arm,
        index=index,
        start_s=server.start_s,
        peak_pss_mib=memory.peak_mib,
        command=command.argv()[1:],
        sglang_version=info["version"],
        draft_path=find_draft_path(info),
        phases=phases,
    )


def _warm_up(
    server: Server, settings: Settings, prompts: Sequence[Sequence[int]]
) -> None:
    for concurrency in settings.concurrency:
        complete_all(server.url, prompts[:concurrency], 8, concurrency)
    server.check_alive()


def _run_phases(
    server: Server,
    settings: Settings,
    prompts: Sequence[Sequence[int]],
    counter_dir: Path,
    say: Say,
) -> list[Phase]:
    phases = []
    before = read_settled_counters(counter_dir)
    for round_ in range(settings.rounds):
        for concurrency, count in zip(settings.concurrency, settings.requests):
            start = time.perf_counter()
            completions = complete_all(
                server.url, prompts[:count], settings.output_tokens, concurrency
            )
            seconds = time.perf_counter() - start
            server.check_alive()
            after = read_settled_counters(counter_dir)
            delta = subtract(after, before)
            before = after
            phase = Phase(
                concurrency=concurrency,
                round=round_,
                seconds=seconds,
                completions=completions,
                figures=draft_figures(delta),
                calls_by_scope={scope: delta[0].calls(scope) for scope in SCOPES},
            )
            say(
                f"    concurrency {concurrency}, round {round_ + 1}: "
                f"{phase.output_tok_per_s:.1f} output tok/s, {count} requests, "
                f"{len(phase.errors)} errors"
            )
            phases.append(phase)
    return phases
