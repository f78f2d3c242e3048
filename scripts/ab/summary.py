"""From raw records to the figures of a report; reads records and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scripts.ab.plan import Point, Start
from scripts.ab.records import CHECK, Records
from scripts.ab.stats import compare, estimate, geometric_mean, holm
from scripts.serving.spread import Spread

# Metric: how to read it from a result, and whether more of it is better.
METRICS: dict[str, tuple[Callable[[dict[str, Any]], float], bool]] = {
    "output_tok_per_s": (lambda r: r["output_tok_per_s"], True),
    "ttft_ms": (lambda r: r["ttft_ms"]["median"], False),
    "tpot_ms": (lambda r: r["tpot_ms"]["median"], False),
    "e2e_ms": (lambda r: r["e2e_ms"]["median"], False),
}
Pairs = list[tuple[dict[str, Any], dict[str, Any]]]


def summarise(
    records: Records, starts: Sequence[Start], points: Sequence[Point]
) -> dict[str, Any]:
    """Every figure with the names of the raw records behind it."""
    sides = list(dict.fromkeys(start.side for start in starts))
    table = _Table(records, starts)
    clients = list(dict.fromkeys(point.client for point in points))
    return {
        "sides": sides,
        "points": [table.point(point) for point in points],
        "overall": {
            client: table.overall([p for p in points if p.client == client])
            for client in clients
        },
        "by_side": {side: _side(records, starts, side) for side in sides},
        "outputs": _outputs(records, starts),
        "starts_complete": sum(records.complete(s, list(points)) for s in starts),
        "starts_planned": len(starts),
        "interruptions": _interruptions(records, starts),
        "errors": {side: table.errors(side, points) for side in sides},
    }


class _Table:
    """Runs by side, pair and point."""

    def __init__(self, records: Records, starts: Sequence[Start]) -> None:
        self._records = records
        self._starts = starts
        self._sides = list(dict.fromkeys(start.side for start in starts))

    def runs(self, side: str, point: Point) -> dict[int, tuple[Start, dict[str, Any]]]:
        """The finished runs of a point, by pair."""
        found = {}
        for start in self._starts:
            if start.side == side:
                record = self._records.read(start, point.name)
                if record is not None:
                    found[start.pair] = (start, record)
        return found

    def pairs(self, point: Point) -> dict[int, tuple[dict, dict]]:
        """Results of pairs of which both sides were run."""
        control, candidate = (self.runs(side, point) for side in self._sides)
        return {
            pair: (control[pair][1]["result"], candidate[pair][1]["result"])
            for pair in sorted(control.keys() & candidate.keys())
        }

    def point(self, point: Point) -> dict[str, Any]:
        """Figures of one client at one concurrency."""
        runs = {side: self.runs(side, point) for side in self._sides}
        pairs = list(self.pairs(point).values())
        return {
            "client": point.client,
            "concurrency": point.concurrency,
            "metrics": {
                name: {
                    "sides": {
                        side: _spread(read, found) for side, found in runs.items()
                    },
                    "ratio": _ratio(read, pairs),
                }
                for name, (read, _) in METRICS.items()
            },
            "records": {
                side: [
                    self._records.name(self._records.path(start, point.name))
                    for start, _ in found.values()
                ]
                for side, found in runs.items()
            },
        }

    def overall(self, points: Sequence[Point]) -> dict[str, Any]:
        """Geometric means over the concurrencies, pair by pair, of one client; and which
        single concurrencies stay different after Holm's correction."""
        tables = [self.pairs(point) for point in points]
        common = sorted(set.intersection(*(set(t) for t in tables))) if tables else []
        result: dict[str, Any] = {"pairs": common, "metrics": {}, "single": {}}
        for name, (read, _) in METRICS.items():
            ratios = [
                geometric_mean([read(t[pair][1]) / read(t[pair][0]) for t in tables])
                for pair in common
            ]
            if not ratios:
                continue
            result["metrics"][name] = estimate(ratios).to_dict()
            singles = [
                compare(*zip(*((read(a), read(b)) for a, b in t.values())))
                for t in tables
            ]
            levels = [str(point.concurrency) for point in points]
            result["single"][name] = dict(zip(levels, holm(singles)))
        return result

    def errors(self, side: str, points: Sequence[Point]) -> dict[str, Any]:
        """Requests without a full answer, over all runs of a side."""
        count, requests, messages = 0, 0, set()
        for point in points:
            for _, record in self.runs(side, point).values():
                count += record["result"]["errors"]
                requests += int(record["load"]["requests"])
                messages |= set(record["result"]["error_messages"])
        return {
            "requests": requests,
            "errors": count,
            "messages": sorted(messages)[:5],
        }


def _spread(read: Callable, found: dict[int, tuple[Start, dict]]) -> dict | None:
    if not found:
        return None
    return Spread.of(read(record["result"]) for _, record in found.values()).to_dict()


def _ratio(read: Callable, pairs: Pairs) -> dict[str, Any] | None:
    if not pairs:
        return None
    control, candidate = zip(*((read(a), read(b)) for a, b in pairs))
    return compare(control, candidate).to_dict()


def _side(records: Records, starts: Sequence[Start], side: str) -> dict[str, Any]:
    """What the servers of one side said and needed."""
    mine = [start for start in starts if start.side == side]
    attempts = [a for start in mine for a in records.attempts(start)]
    ready = [a for a in attempts if "ready_s" in a]

    def figure(name: str, base: str | None = None) -> dict[str, Any] | None:
        values = [
            a[name] - (a[base] if base else 0.0)
            for a in ready
            if a.get(name) is not None
        ]
        return Spread.of(values).to_dict() if values else None

    checks = [record for start in mine if (record := records.read(start, CHECK))]
    rounds = [c for check in checks for c in check["completions"] if c["verify_rounds"]]
    tokens = sum(len(c["output_ids"]) for c in rounds)
    return {
        "ready_s": figure("ready_s"),
        "memory_ready_mib": figure("memory_ready_mib", "memory_before_mib"),
        "memory_peak_mib": figure("memory_peak_mib", "memory_before_mib"),
        "memory_kind": ready[0]["memory_kind"] if ready else None,
        "memory_usage": ready[0].get("memory_usage") if ready else None,
        "accept_length_load": figure("accept_length"),
        "accept_length_check": (
            tokens / sum(c["verify_rounds"] for c in rounds) if rounds else None
        ),
        "draft_path": _distinct(a.get("draft_path") for a in ready),
        "command": ready[0]["command"] if ready else None,
        "sglang_version": _distinct(a.get("sglang_version") for a in ready),
    }


def _distinct(values) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value is not None and value not in found:
            found.append(value)
    return found


def _outputs(records: Records, starts: Sequence[Start]) -> dict[str, Any]:
    """Greedy answers of every start against those of the first."""
    answers = {
        start.folder: [
            None if c["error"] else c["output_ids"] for c in check["completions"]
        ]
        for start in starts
        if (check := records.read(start, CHECK))
    }
    sides = {start.side for start in starts if start.folder in answers}
    rows = list(zip(*answers.values()))
    differing = [
        i for i, row in enumerate(rows) if None in row or any(a != row[0] for a in row)
    ]
    return {
        "compared": len(rows) if len(sides) == 2 else 0,
        "starts": len(answers),
        "differing": differing if len(sides) == 2 else [],
        "failed": sum(None in row for row in rows),
        "records": [f"raw/{folder}/{CHECK}.json" for folder in answers],
    }


def _interruptions(records: Records, starts: Sequence[Start]) -> list[str]:
    """What happened besides the plan, in words."""
    notes = []
    for start in starts:
        attempts = records.attempts(start)
        for attempt in attempts[:-1]:
            notes.append(
                f"Server start {start.index + 1} ({start.side}) ended early "
                f"({attempt['ended']}); its missing runs were made with another server."
            )
    return notes
