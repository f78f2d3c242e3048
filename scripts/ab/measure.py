"""One server start: ready, warm-up, greedy check, every run that is still missing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.ab.clients import Client, ClientError
from scripts.ab.launch import Launch
from scripts.ab.plan import Point, Start, make_load
from scripts.ab.records import ATTEMPT, CHECK, Records, now
from scripts.serving import MemorySampler, Server, ServerError, complete_all, free_port
from scripts.serving.client import get_json
from scripts.serving.processes import Session
from scripts.serving.status import Say, Ticker, find_draft_path, find_field

_POLL_S = 0.2
_TAIL_LINES = 15
_SETTLE_S = 2.0
_WARM_UP_TOKENS = 8


@dataclass
class Bench:
    """What all server starts of a comparison share."""

    launch: Launch
    clients: dict[str, Client]
    points: list[Point]
    records: Records
    context: dict[str, Any]
    say: Say


def measure_start(bench: Bench, start: Start, label: str) -> None:
    """Serve `start` and make its missing records.

    Raises ServerError when the server does not come up or dies, ClientError when a client
    fails. Finished runs stay on disk in any case; the attempt's record says how it ended.
    """
    number = len(bench.records.attempts(start))
    folder = bench.records.folder(start)
    port = bench.launch.port or free_port()
    log_path = folder / f"server-{number}.log"
    server = bench.launch.server(start, port, log_path)
    with _attempt(bench, start, number, server) as attempt:
        bench.say(f"{label} starting the server, log in {log_path}")
        idle = bench.launch.idle_memory()
        attempt["memory_before_mib"] = idle() / (1 << 20) if idle else 0.0
        server.start()
        with _memory(bench.launch.memory_sampler(server), attempt) as sample:
            server.wait_ready(Ticker(label, bench.say))
            attempt["memory_ready_mib"] = sample()
            _ready(bench, attempt, server)
            bench.say(f"{label} ready after {server.start_s:.0f} s; warming up")
            _warm_up(bench, start, server)
            _check(bench, start, server)
            for point in bench.records.missing(start, bench.points):
                _run_point(bench, start, point, server, number)
            sample()
            _finish(attempt, server)


@contextlib.contextmanager
def _memory(
    sampler: MemorySampler | None, attempt: dict[str, Any]
) -> Iterator[Callable[[], float | None]]:
    """Yields a function that takes a sample, in MiB; the peak goes into the record."""
    if sampler is None:
        yield lambda: None
        return
    with sampler:
        try:
            yield sampler.sample
        finally:
            attempt["memory_peak_mib"] = sampler.peak_mib


@contextlib.contextmanager
def _attempt(
    bench: Bench, start: Start, number: int, server: Server
) -> Iterator[dict[str, Any]]:
    """Stops the server and writes how the attempt ended, whatever happens."""
    name = f"{ATTEMPT}-{number}"
    record = {
        "kind": "server start",
        "start": asdict(start),
        "attempt": number,
        "command": server.command.argv(),
        "environment": server.command.env,
        "python_path": [str(path) for path in server.command.python_path],
        "log": bench.records.name(server.command.log_path),
        "started_at": now(),
        "ended": "not known: the runner was killed",
        **bench.context,
    }
    bench.records.write(start, name, record)
    try:
        yield record
        record["ended"] = "stopped when everything was measured"
    except BaseException as error:
        text = str(error).splitlines()
        record["ended"] = (
            f"{type(error).__name__}: {text[0].rstrip(': ') if text else ''}"
        )
        if isinstance(error, ServerError):
            tail = server.log_tail()
            raise ServerError(f"{error}\nlast lines of it:\n{tail}") from None
        raise
    finally:
        try:
            server.stop()
        finally:
            record["ended_at"] = now()
            bench.records.write(start, name, record)


def _ready(bench: Bench, attempt: dict[str, Any], server: Server) -> None:
    attempt["ready_s"] = server.start_s
    info = get_json(f"{server.url}/server_info")
    attempt["sglang_version"] = info.get("version")
    attempt["draft_path"] = find_draft_path(info)
    attempt["memory_usage"] = find_field(info, "memory_usage")
    attempt["memory_kind"] = bench.launch.memory_kind


def _finish(attempt: dict[str, Any], server: Server) -> None:
    info = get_json(f"{server.url}/server_info")
    attempt["accept_length"] = find_field(info, "avg_spec_accept_length")


def _warm_up(bench: Bench, start: Start, server: Server) -> None:
    """Short requests at every concurrency, recorded and never reported."""
    prompts = list(bench.launch.check_prompts())
    began, at = time.perf_counter(), now()
    count = 0
    for level in bench.launch.profile.concurrency:
        wave = [prompts[i % len(prompts)] for i in range(level)]
        complete_all(server.url, wave, _WARM_UP_TOKENS, level)
        count += level
    server.check_alive()
    record = {
        "kind": "warm-up",
        "started_at": at,
        "seconds": time.perf_counter() - began,
        "requests": count,
        "output_tokens_each": _WARM_UP_TOKENS,
    }
    bench.records.write(start, "warm-up", record)


def _check(bench: Bench, start: Start, server: Server) -> None:
    """Greedy answers to fixed prompts, one at a time so that no batch decides them."""
    if bench.records.read(start, CHECK) is not None:
        return
    profile = bench.launch.profile
    prompts = bench.launch.check_prompts()
    timeout_s = profile.client_timeout_s
    answers = complete_all(server.url, prompts, profile.check_tokens, 1, timeout_s)
    server.check_alive()
    record = {
        "kind": "greedy check",
        "at": now(),
        "max_new_tokens": profile.check_tokens,
        "completions": [asdict(answer) for answer in answers],
        **bench.context,
    }
    bench.records.write(start, CHECK, record)


def _run_point(
    bench: Bench, start: Start, point: Point, server: Server, attempt: int
) -> None:
    profile = bench.launch.profile
    client = bench.clients[point.client]
    load = make_load(profile, start, point)
    folder = bench.records.folder(start) / f"{point.name}-{attempt}"
    model = str(bench.launch.model)
    command = client.command(load, server.url, model, folder)
    began = now()
    _run_client(bench, command, folder, server, point)
    result = client.read(load, folder)
    if result.errors:
        _settle(server)
    record = {
        "kind": "run",
        "start": asdict(start),
        "point": asdict(point),
        "attempt": attempt,
        "command": command,
        "server_command": server.command.argv(),
        "load": {key: str(value) for key, value in asdict(load).items()},
        "started_at": began,
        "ended_at": now(),
        "client_files": bench.records.name(folder),
        "result": result.to_dict(),
        **bench.context,
    }
    bench.records.write(start, point.name, record)
    bench.say(
        f"    {point.client}, concurrency {point.concurrency}: "
        f"{result.output_tok_per_s:.1f} output tok/s, TTFT "
        f"{result.ttft_ms.median:.0f} ms, TPOT {result.tpot_ms.median:.1f} ms, "
        f"{result.completed} requests, {result.errors} errors"
    )


def _settle(server: Server) -> None:
    """Raise ServerError when requests failed because the server is ending."""
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        server.check_alive()
        time.sleep(_POLL_S)
    if not server.healthy():
        raise ServerError(f"the server stopped answering\n{server.log_tail()}")


def _run_client(
    bench: Bench, command: Sequence[str], folder: Path, server: Server, point: Point
) -> None:
    """Run a client to its end; the server's death, or too long a run, ends it."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "client.log"
    # AIPerf lives in an environment of its own, where our folders would be in the way.
    ours = server.command.environment() if point.client == "sglang" else _clean_env()
    session = Session(command, ours, log)
    deadline = time.monotonic() + bench.launch.profile.client_timeout_s
    try:
        while (code := session.leader.poll()) is None:
            server.check_alive()
            if time.monotonic() > deadline:
                raise ClientError(
                    f"client {point.client}: not done after "
                    f"{bench.launch.profile.client_timeout_s:.0f} s\n{_tail(log)}"
                )
            time.sleep(_POLL_S)
    finally:
        session.stop()
    server.check_alive()
    if code:
        raise ClientError(
            f"client {point.client}: exit code {code}; log {log}\n{_tail(log)}"
        )


def _clean_env() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
