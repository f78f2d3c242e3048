"""The rows that the Markdown and the HTML report share, as plain text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scripts.ab.charts import (
    Series,
    bar_chart,
    interval_chart,
    number,
    value_chart,
)

LABELS = {
    "output_tok_per_s": "Output tokens/s",
    "ttft_ms": "TTFT, ms",
    "tpot_ms": "TPOT, ms",
    "e2e_ms": "End to end, ms",
}
IN_FLIGHT = "requests in flight"


@dataclass(frozen=True)
class Table:
    """A title, a head and rows."""

    title: str
    head: list[str]
    rows: list[list[str]]


def tables(report: dict[str, Any]) -> Iterator[Table]:
    """Every table of the report, in order."""
    for client in report["settings"]["clients"]:
        for metric in LABELS:
            yield _metric_table(report, client, metric)
    yield _side_table(report)


def charts(report: dict[str, Any]) -> dict[str, str]:
    """SVG by file name: ratio, throughput, TTFT and TPOT of each client, memory."""
    made = {"ratio": _ratio_chart(report)}
    for client in report["settings"]["clients"]:
        for metric in ("output_tok_per_s", "ttft_ms", "tpot_ms"):
            made[f"{client}-{metric}"] = _metric_chart(report, client, metric)
    memory = _memory_chart(report)
    if memory:
        made["memory"] = memory
    return made


def _points(report: dict[str, Any], client: str) -> list[dict[str, Any]]:
    return [point for point in report["points"] if point["client"] == client]


def _metric_table(report: dict[str, Any], client: str, metric: str) -> Table:
    overall = report["overall"][client]
    single = overall["single"].get(metric, {})
    rows = []
    for point in _points(report, client):
        figures = point["metrics"][metric]
        level = str(point["concurrency"])
        rows.append(
            [
                level,
                *(_range(figures["sides"][side]) for side in report["sides"]),
                _ratio(figures["ratio"]),
                single.get(level, "-"),
            ]
        )
    total = overall["metrics"].get(metric)
    if total:
        blank = [""] * len(report["sides"])
        rows.append(["all", *blank, _ratio(total), total["finding"]])
    head = [IN_FLIGHT, *report["sides"], "ratio (95 % interval)", "finding"]
    return Table(f"{LABELS[metric]}, {client} client: median (range)", head, rows)


def _side_table(report: dict[str, Any]) -> Table:
    sides = [report["by_side"][side] for side in report["sides"]]
    errors = [report["errors"][side] for side in report["sides"]]
    rows = [
        ["request errors", *(f"{e['errors']} of {e['requests']}" for e in errors)],
        ["start until ready, s", *(_range(s["ready_s"]) for s in sides)],
        ["memory when ready, MiB", *(_range(s["memory_ready_mib"]) for s in sides)],
        ["memory at peak, MiB", *(_range(s["memory_peak_mib"]) for s in sides)],
        ["accept length under load", *(_range(s["accept_length_load"]) for s in sides)],
        ["accept length, check", *(_plain(s["accept_length_check"]) for s in sides)],
        ["draft path", *(_path(s["draft_path"]) for s in sides)],
    ]
    return Table("Servers", ["", *report["sides"]], rows)


def outputs_line(report: dict[str, Any]) -> str:
    """What the greedy check found."""
    outputs = report["outputs"]
    compared, differing = outputs["compared"], len(outputs["differing"])
    if not compared:
        return "Greedy outputs were not compared."
    return (
        f"Greedy outputs: {compared - differing} of {compared} fixed prompts gave the same "
        f"tokens in all {outputs['starts']} server starts."
    )


def _ratio_chart(report: dict[str, Any]) -> str:
    clients = report["settings"]["clients"]
    levels = [str(level) for level in report["settings"]["concurrency"]]
    series = []
    for client in clients:
        ratios = [
            p["metrics"]["output_tok_per_s"]["ratio"] for p in _points(report, client)
        ]
        ratios.append(report["overall"][client]["metrics"].get("output_tok_per_s"))
        series.append(
            Series(
                client,
                *([r and r[key] for r in ratios] for key in ("ratio", "low", "high")),
            )
        )
    control, candidate = report["sides"]
    title = f"Throughput, {candidate} over {control}, 95 % interval"
    return interval_chart(title, [*levels, "all"], series, IN_FLIGHT)


def _metric_chart(report: dict[str, Any], client: str, metric: str) -> str:
    points = _points(report, client)
    series = []
    for side in report["sides"]:
        spreads = [p["metrics"][metric]["sides"][side] for p in points]
        series.append(
            Series(
                side,
                *([s and s[key] for s in spreads] for key in ("median", "min", "max")),
            )
        )
    levels = [str(p["concurrency"]) for p in points]
    title = f"{LABELS[metric]}, {client} client: median, range"
    return value_chart(title, levels, series, IN_FLIGHT)


def _memory_chart(report: dict[str, Any]) -> str | None:
    series = []
    for side in report["sides"]:
        figures = report["by_side"][side]
        pair = [figures["memory_ready_mib"], figures["memory_peak_mib"]]
        series.append(Series(side, [f and f["median"] for f in pair]))
    if not any(one.span() for one in series):
        return None
    return bar_chart(
        "Memory, MiB: median over server starts", ["ready", "peak"], series
    )


def _range(spread: dict[str, Any] | None) -> str:
    if spread is None:
        return "-"
    low, high = number(spread["min"]), number(spread["max"])
    return f"{number(spread['median'])} ({low} to {high})"


def _ratio(ratio: dict[str, Any] | None) -> str:
    if ratio is None:
        return "-"
    if ratio["low"] is None:
        return f"{ratio['ratio']:.3f}"
    return f"{ratio['ratio']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"


def _plain(value: float | None) -> str:
    return "-" if value is None else number(value)


def _path(paths: list[dict[str, Any]]) -> str:
    texts = []
    for path in paths:
        reason = f", {path['reason']}" if path.get("reason") else ""
        texts.append(f"{path.get('path')}{reason} (mode {path.get('mode')})")
    return "; ".join(texts) or "not said"
