"""Recorded results, and the figures and tables that the description takes from them.

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

COMMITTED = ("benchmark/**/results-*.md", "benchmark/**/records/**/*.json")
BUILT = ("build/demo/report.json", "build/bench/sampling-layer-tp*.json")


@dataclass(frozen=True)
class Source:
    """A record: its path as a reader finds it, and the hash of its bytes."""

    path: str
    digest: str

    @classmethod
    def of(cls, project: Project, path: Path) -> Source:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        return cls(project.name(path), digest)

    def at(self, place: str = "") -> str:
        where = f", {place}" if place else ""
        return f"`{self.path}`{where} (sha256 {self.digest})"


@dataclass(frozen=True)
class Table:
    """Rows of a record as Markdown, what they were measured on, and where they are."""

    rows: list[str]
    context: str
    source: str

    def markdown(self) -> str:
        rows = "\n".join(self.rows)
        return f"{self.context}\n\n{rows}\n\nSource: {self.source}"


@dataclass(frozen=True)
class Results:
    """What the records say, by the section that it belongs to."""

    accuracy: list[Table]
    speed: list[Table]
    on_gpu: bool
    unread: list[str]


def read_results(project: Project, extra: list[Path]) -> Results:
    """All records: committed ones, those under build, and the named ones.

    Raises ForkError for a record that is not JSON or lacks what its kind has.
    """
    found = [p for g in (*COMMITTED, *BUILT) for p in sorted(project.root.glob(g))]
    accuracy, speed, unread = [], [], []
    on_gpu = False
    for path in dict.fromkeys([*found, *extra]):
        if not path.is_file():
            raise ForkError(f"--record {path}: no such file")
        source = Source.of(project, path)
        if path.suffix == ".md":
            speed += markdown_tables(path.read_text("utf-8"), source)
            continue
        record = load(path)
        on_gpu = on_gpu or bool(gpu_of(record))
        try:
            if is_sampling_layer(record):
                speed.append(sampling_layer(record, source))
            elif is_comparison(record):
                accuracy.append(same_answers(record, source))
                speed.append(throughput(record, source))
            else:
                unread.append(source.at())
        except (KeyError, TypeError, IndexError) as error:
            raise ForkError(f"{path}: the record has no {error}") from None
    return Results(accuracy, speed, on_gpu, unread)


def load(path: Path) -> Mapping:
    try:
        record = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ForkError(f"{path}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise ForkError(f"{path}: a record is a JSON object")
    return record


def gpu_of(record: Mapping) -> object:
    """The GPU that a record names, whichever of our scripts wrote it."""
    machine = record.get("hardware") or record.get("machine") or {}
    return machine.get("gpu") or machine.get("gpus") if machine else None


def is_sampling_layer(record: Mapping) -> bool:
    rows = record.get("results")
    return bool(rows) and isinstance(rows, list) and "dense_ms" in rows[0]


def is_comparison(record: Mapping) -> bool:
    arms = record.get("arms")
    return isinstance(arms, dict) and {"dense", "packed"} <= set(arms)


def markdown_tables(text: str, source: Source) -> list[Table]:
    """Each table of a results page, with the paragraph above it, as it stands."""
    tables, paragraph, above, rows = [], [], [], []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("|"):
            rows.append(line)
            continue
        if rows:
            place = f"lines {number - len(rows)} to {number - 1}"
            tables.append(Table(rows, " ".join(above), source.at(place)))
            rows = []
        if line.strip() and not line.startswith("#"):
            paragraph.append(line.strip())
        elif paragraph:
            above, paragraph = paragraph, []
    return tables


def sampling_layer(record: Mapping, source: Source) -> Table:
    """Selection of a draft token alone, dense and packed in turn."""
    head = "| TP | V | rows | dense, ms | packed, ms | times faster | 10 to 90 % |"
    rows = [head, "| ---: | ---: | ---: | ---: | ---: | ---: | --- |"]
    for row in record["results"]:
        ratio = row["ratio"]
        cells = (
            record["tp"],
            row["vocab"],
            row["rows"],
            f"{row['dense_ms']['median']:.3g}",
            f"{row['packed_ms']['median']:.3g}",
            f"{ratio['median']:.2f}",
            f"{ratio['p10']:.2f} to {ratio['p90']:.2f}",
        )
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    context = f"Sampling layer alone, {record['dtype']}, {machine_of(record)}."
    return Table(rows, context, source.at("results"))


def machine_of(record: Mapping) -> str:
    machine = record.get("hardware") or record["machine"]
    return gpu_text(record) + f"{machine['cpu']}, {machine['cores']} cores"


def gpu_text(record: Mapping) -> str:
    gpu = gpu_of(record)
    return f"{gpu}, " if gpu else ""


def throughput(record: Mapping, source: Source) -> Table:
    """The served model, both arms, at each number of requests in flight."""
    arms = record["arms"]
    rows = ["| | dense | packed |", "| --- | ---: | ---: |"]

    def row(name: str, key: str, form: str) -> None:
        cells = [arms[arm][key] for arm in ("dense", "packed")]
        texts = ["" if cell is None else format(cell, form) for cell in cells]
        rows.append(f"| {name} | {texts[0]} | {texts[1]} |")

    for level in arms["dense"].get("output_tok_per_s_by_concurrency", {}):
        cells = [
            spread(arms[arm]["output_tok_per_s_by_concurrency"][level])
            for arm in ("dense", "packed")
        ]
        name = f"output tokens/s, {level} in flight"
        rows.append(f"| {name} | {cells[0]} | {cells[1]} |")
    row("draft all-gather, bytes a row", "draft_collective_bytes_per_token", ".0f")
    row("vocabulary collectives a draft step", "draft_collectives_per_step", ".0f")
    row("peak memory, MiB", "peak_rss_mib", ".0f")
    context = (
        f"Served: {record['model']}, TP{record['tp']}, {record['num_steps']} draft "
        f"steps, V = {record['vocab_size']}, {record.get('dtype', 'dtype not recorded')}, "
        f"SGLang {record['sglang_version']}, {machine_of(record)}."
    )
    return Table(rows, context, source.at("arms"))


def spread(figures: Mapping) -> str:
    low, high = figures.get("min"), figures.get("max")
    if low is None or high is None:
        return f"{figures['median']:.1f}"
    return f"{figures['median']:.1f} ({low:.1f} to {high:.1f})"


def same_answers(record: Mapping, source: Source) -> Table:
    """Whether the two arms gave the same outputs and accept lengths."""
    arms = record["arms"]
    rows = ["| | |", "| --- | --- |"]
    rows.append(f"| outputs identical | {yes(record['outputs_identical'])} |")
    if "requests_compared" in record:
        compared, differing = record["requests_compared"], record["requests_differing"]
        rows.append(f"| requests compared, differing | {compared}, {differing} |")
    lengths = [f"{arms[arm]['accept_length']:.3f}" for arm in ("dense", "packed")]
    rows.append(f"| accept length, dense and packed | {', '.join(lengths)} |")
    errors = [str(arms[arm]["request_errors"]) for arm in ("dense", "packed")]
    rows.append(f"| request errors, dense and packed | {', '.join(errors)} |")
    context = f"{record['model']}, TP{record['tp']}, {machine_of(record)}."
    return Table(rows, context, source.at("outputs_identical, arms"))


def yes(value: bool) -> str:
    return "yes" if value else "**no**"
