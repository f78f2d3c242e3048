"""Recorded results, and which table of the description each of them becomes.

No figure of the description is written anywhere in this tool: each comes out of a
record, and says which file and which place in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fork.project import ForkError, Project
from prepare_pr import tables
from prepare_pr.tables import Source, Table

# Committed ones only: what a build folder holds may be of any commit. In this order.
COMMITTED = (
    "docs/families.json",
    "benchmark/**/records/**/demo*.json",
    "benchmark/**/results-*.md",
    "benchmark/**/records/**/*.json",
)


@dataclass(frozen=True)
class Results:
    """What the records say, by the section that it belongs to."""

    accuracy: list[Table]
    speed: list[Table]
    on_gpu: bool
    unread: list[str]


def read_results(project: Project, extra: list[Path]) -> Results:
    """All committed records, and the named ones.

    Raises ForkError for a record that is not JSON or lacks what its kind has.
    """
    found = [p for g in COMMITTED for p in sorted(project.root.glob(g))]
    results = Results([], [], False, [])
    for path in dict.fromkeys([*found, *extra]):
        if not path.is_file():
            raise ForkError(f"--record {path}: no such file")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        source = Source(project.name(path), digest)
        if path.suffix == ".md":
            results.speed.extend(tables.sections(path.read_text("utf-8"), source))
            continue
        try:
            results = with_record(results, load(path), source)
        except (KeyError, TypeError, IndexError) as error:
            raise ForkError(f"{path}: the record has no {error}") from None
    return results


def with_record(
    results: Results, record: Mapping | list[Mapping], source: Source
) -> Results:
    """`results` and the tables of one record."""
    if isinstance(record, list):
        accuracy, speed = [tables.families(record, source)], []
    elif is_sampling_layer(record):
        accuracy, speed = [], [tables.sampling_layer(record, source)]
    elif is_comparison(record):
        accuracy = [tables.same_answers(record, source)]
        speed = [tables.throughput(record, source)]
    elif "policy" in record:
        accuracy, speed = [], [tables.policies(record, source)]
    else:
        unread = [*results.unread, source.at()]
        return Results(results.accuracy, results.speed, results.on_gpu, unread)
    gpu = isinstance(record, Mapping) and bool(tables.gpu_of(record))
    return Results(
        results.accuracy + accuracy,
        results.speed + speed,
        results.on_gpu or gpu,
        results.unread,
    )


def load(path: Path) -> Mapping | list[Mapping]:
    """A record: a JSON object, or the list of families."""
    try:
        record = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ForkError(f"{path}: not JSON: {error}") from None
    if not isinstance(record, (dict, list)):
        raise ForkError(f"{path}: a record is a JSON object")
    return record


def is_sampling_layer(record: Mapping) -> bool:
    rows = record.get("results")
    return bool(rows) and isinstance(rows, list) and "dense_ms" in rows[0]


def is_comparison(record: Mapping) -> bool:
    arms = record.get("arms")
    return isinstance(arms, dict) and {"dense", "packed"} <= set(arms)
