"""On which releases of SGLang the edits land, and why not on the others."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from fork import engine_tests
from fork.edits import load_edits
from fork.pins import Pins
from fork.plan import make_plan
from fork.pristine import pristine_package, release_package
from fork.project import ForkError, Project

OLDER = 2  # releases before the pin
NEWER = 3  # newest releases after it
FINAL = re.compile(r"\d+(\.\d+)*(\.post\d+)?")


def served(pins: Pins) -> list[str]:
    """Versions that the package index serves, newest first; [] when it does not say."""
    command = [sys.executable, "-m", "pip", "index", "versions", pins.name]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"^Available versions: (.+)$", done.stdout, re.M)
    versions = found[1].split(", ") if found else []
    return sorted(filter(FINAL.fullmatch, versions), key=order, reverse=True)


def order(version: str) -> tuple[int, ...]:
    """A key that sorts releases: 0.5.9 < 0.5.10 < 0.5.10.post1."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def around(pins: Pins, versions: list[str]) -> list[str]:
    """The releases to look at: the pin, some before it, and the newest after it."""
    older = [v for v in versions if order(v) < order(pins.version)][:OLDER]
    newer = [v for v in versions if order(v) > order(pins.version)][:NEWER]
    return [*reversed(older), pins.version, *reversed(newer)]


def row_of(
    project: Project, version: str, package: Path, reference: Path, serve: bool = False
) -> dict:
    """One release: how many edits there are, how many land, and why others do not;
    with `serve` also what its engine does with them, and with the packages here."""
    plan = make_plan(project, package, reference=reference)
    edits = load_edits(project)
    refused = [
        {"edit": place, "reasons": reasons} for place, reasons in plan.refused.items()
    ]
    # What stops apply beside single edits, such as a new file that upstream has now.
    said = {reason for entry in refused for reason in entry["reasons"]}
    other = [problem for problem in plan.problems if problem not in said]
    row = {
        "version": version,
        "edits": len(edits),
        "applied": len(edits) - len(refused),
        "refused": refused,
        "other_problems": other,
        "engine_tests": engine_tests.NOT_ASKED,
    }
    if serve:
        row["requirements_unmet"] = engine_tests.unmet(package)
        row["engine_tests"] = engine_tests.run(project, version, package, plan)
    return row


def compat(
    project: Project, out: Path, versions: list[str], serve: bool = False
) -> str:
    """Write the rows as JSON to `out`; returns them as a table with the reasons.

    A release that cannot be fetched is a row with a reason, not an error.
    """
    pins = Pins.load(project)
    _, reference = pristine_package(project, pins)
    if not versions:
        versions = around(pins, served(pins))
    rows = []
    for version in versions:
        try:
            package = release_package(project, pins, version)
        except ForkError as error:
            rows.append({"version": version, "not_fetched": str(error)})
            continue
        rows.append(row_of(project, version, package, reference, serve))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return f"{table(rows)}\n\n{out}"


def table(rows: list[dict]) -> str:
    """Rows as Markdown, each refused edit with its first reason below."""
    lines = [
        "| version | edits | applied | refused | other problems | engine tests |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    details = []
    for row in rows:
        if "not_fetched" in row:
            lines.append(f"| {row['version']} | | | | not fetched | not run |")
            details.append(f"- {row['version']}: {row['not_fetched']}")
            continue
        counts = (row["edits"], row["applied"], len(row["refused"]))
        cells = [row["version"], *counts, len(row["other_problems"])]
        cells.append(row["engine_tests"])
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        for entry in row["refused"]:
            first = entry["reasons"][0].split("\n")[0]
            more = len(entry["reasons"]) - 1
            details.append(
                f"- {row['version']}: {first}" + (f" (and {more} more)" if more else "")
            )
        details += [f"- {row['version']}: {text}" for text in row["other_problems"]]
        if missing := row.get("requirements_unmet"):
            details.append(f"- {row['version']} asks for other packages than are here:")
            details += [f"  {text}" for text in missing]
    return "\n".join([*lines, "", *details]).rstrip()
