"""The report of a comparison: `report.json`, `report.md`, `report.html`, `charts/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts.ab.markdown import render_markdown
from scripts.ab.page import render_page
from scripts.ab.plan import make_points, make_starts, sides_of
from scripts.ab.profile import Profile
from scripts.ab.records import Records, now, write_json
from scripts.ab.stats import RULE
from scripts.ab.summary import summarise
from scripts.ab.tables import charts
from scripts.ab.verdict import comparable, not_measured, verdict

DEFINITIONS = {
    "output_tok_per_s": "output tokens of all requests over the wall time of the run",
    "ttft_ms": "median over requests of the time to the first token",
    "tpot_ms": "median over requests of (end to end - TTFT) / (output tokens - 1)",
    "e2e_ms": "median over requests of the end-to-end latency",
    "ratio": "candidate over control, geometric mean over pairs of server starts",
    "memory": "in use above what was in use before the server started; ready: after it "
    "answered /health; peak: largest sample until its last run ended",
    "accept_length_load": "output tokens a verify round since the server started, bonus "
    "token included, as the server counts it; warm-up and check included",
    "accept_length_check": "the same over the greedy check only",
}


def build_report(out: Path) -> dict[str, Any]:
    """The report of what is in `out/raw`. ValueError when nothing is."""
    records = Records(out)
    plan = records.plan()
    if plan is None:
        raise ValueError(f"--out {out}: no raw records there; measure first")
    settings = plan["profile"]
    profile = Profile(**settings)
    starts = make_starts(profile.pairs, sides_of(plan["null"]))
    summary = summarise(records, starts, make_points(profile))
    contexts = [a for start in starts for a in records.attempts(start)]
    return {
        "profile": profile.name,
        "title": profile.title,
        "notes": profile.notes.strip(),
        "verdict": verdict(summary, settings),
        "comparable": comparable(summary, settings),
        "complete": summary["starts_complete"] == summary["starts_planned"],
        "null": plan["null"],
        "rule": RULE,
        "definitions": DEFINITIONS,
        "not_measured": not_measured(summary, settings, attached=bool(plan["attach"])),
        "settings": settings,
        "served": plan["served"],
        "commits": _distinct(contexts, "commit"),
        "versions": _distinct(contexts, "versions"),
        "hardware": _distinct(contexts, "hardware"),
        "measured": _times(contexts),
        "reported_at": now(),
        **summary,
    }


def write_report(out: Path) -> dict[str, Any]:
    """Build the report and write all its forms. ValueError when nothing was run."""
    report = build_report(out)
    write_json(out / "report.json", report)
    (out / "report.md").write_text(render_markdown(report))
    (out / "report.html").write_text(render_page(report))
    folder = out / "charts"
    folder.mkdir(exist_ok=True)
    for name, svg in charts(report).items():
        (folder / f"{name}.svg").write_text(svg + "\n")
    return report


def _distinct(contexts: list[dict[str, Any]], key: str) -> list[Any]:
    found: list[Any] = []
    for item in contexts:
        if item.get(key) is not None and item[key] not in found:
            found.append(item[key])
    return found


def _times(contexts: list[dict[str, Any]]) -> dict[str, str | None]:
    return {
        "first": min((a["started_at"] for a in contexts), default=None),
        "last": max((a.get("ended_at") or "" for a in contexts), default=None),
    }
