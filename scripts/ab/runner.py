"""Every server start of a comparison, resumed where an earlier call stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.ab.clients import CLIENTS, Client
from scripts.ab.clients.aiperf import AIPerf
from scripts.ab.launch import prepare
from scripts.ab.measure import Bench, measure_start
from scripts.ab.plan import Start, make_points, make_starts, sides_of
from scripts.ab.profile import Profile
from scripts.ab.provenance import context, served
from scripts.ab.records import Records
from scripts.serving import ServerError
from scripts.serving.status import Say


@dataclass(frozen=True)
class Options:
    """How a comparison is run, apart from what is measured."""

    out: Path
    fork: Path | None
    port: int | None = None
    null: bool = False
    fresh: bool = False
    stop_after: int | None = None
    attach: dict[str, str] = field(default_factory=dict)
    aiperf: str = "aiperf"


def plan_of(profile: Profile, options: Options) -> dict[str, Any]:
    """What runs must share to be put into one report."""
    return {
        "profile": profile.to_dict(),
        "null": options.null,
        "served": served(options.fork),
        "attach": options.attach,
    }


def run(profile: Profile, options: Options, say: Say) -> Records:
    """Measure what is missing. Raises ValueError for bad input, ServerError and
    ClientError for what fails; everything finished stays on disk."""
    clients = _clients(profile, options)
    versions = {name: client.version() for name, client in clients.items()}
    launch = prepare(profile, options.fork, options.port, options.attach, say)
    records = Records(options.out)
    kept = records.open(plan_of(profile, options), options.fresh)
    starts = make_starts(profile.pairs, sides_of(options.null))
    points = make_points(profile)
    todo = [start for start in starts if not records.complete(start, points)]
    if kept and todo:
        say(
            f"resuming: {len(starts) - len(todo)} of {len(starts)} server starts are "
            f"measured"
        )
    bench = Bench(
        launch, clients, points, records, context(options.fork, versions), say
    )
    for start in todo[: options.stop_after]:
        label = f"[{start.index + 1}/{len(starts)} {start.side}]"
        _measure(bench, start, label)
    left = len(todo) - len(todo[: options.stop_after])
    if left:
        say(f"stopped as asked; {left} server starts are left, run again to go on")
    return records


def _clients(profile: Profile, options: Options) -> dict[str, Client]:
    return {
        name: AIPerf(options.aiperf) if name == "aiperf" else CLIENTS[name]()
        for name in profile.clients
    }


def _measure(bench: Bench, start: Start, label: str) -> None:
    """One start; a server that dies after it was ready is replaced once."""
    before = len(bench.records.attempts(start))
    try:
        measure_start(bench, start, label)
    except ServerError as error:
        attempts = bench.records.attempts(start)
        if len(attempts) == before or "ready_s" not in attempts[-1]:
            raise
        bench.say(
            f"{label} the server was lost: {str(error).splitlines()[0].rstrip(': ')}"
        )
        bench.say(f"{label} resuming with a new server; finished runs are kept")
        measure_start(bench, start, label)
