"""Tables of the description, a function for each kind of record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from prepare_pr.docs import LINK

# Sections of a results page that a later one has overtaken.
SUPERSEDED = "Earlier"
LONG = 14  # rows; a longer table is folded


@dataclass(frozen=True)
class Source:
    """A record: its path as a reader finds it, and the hash of its bytes."""

    path: str
    digest: str

    def at(self, place: str = "") -> str:
        where = f", {place}" if place else ""
        return f"`{self.path}`{where} (sha256 {self.digest})"


@dataclass(frozen=True)
class Table:
    """Lines of Markdown from a record, what they were measured on, and where they are."""

    rows: list[str]
    context: str
    source: str

    def markdown(self) -> str:
        lines: list[str] = []
        for block in blocks(self.rows):
            table = block[0].startswith("|") and len(block) > LONG
            lines += folded(f"{len(block) - 2} rows", block) if table else block
        return f"{self.context}\n\n" + "\n".join(lines) + f"\n\nSource: {self.source}"


def folded(title: str, lines: list[str]) -> list[str]:
    """Lines that are shown when their title is clicked."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>"]


def blocks(lines: list[str]) -> list[list[str]]:
    """Runs of table rows, and runs of other lines."""
    runs: list[list[str]] = []
    for line in lines:
        if not runs or runs[-1][0].startswith("|") != line.startswith("|"):
            runs.append([])
        runs[-1].append(line)
    return runs


def sections(text: str, source: Source) -> list[Table]:
    """Every section of a results page as it stands, but for those that are superseded.

    The words above the first heading of level two go before the first of them. Of a link
    to a file beside the page its text stays.
    """
    found, lines = [], text.splitlines()
    heads = [i for i, line in enumerate(lines) if re.match("##? ", line)]
    intro = ""
    for start, end in zip(heads, [*heads[1:], len(lines)]):
        title = lines[start].lstrip("# ")
        while end > start and not lines[end - 1].strip():
            end -= 1
        body = (
            re.sub(LINK, r"\1", "\n".join(lines[start + 1 : end])).strip().splitlines()
        )
        if not body or title.startswith(SUPERSEDED):
            continue
        if lines[start].startswith("# ") and not any(x.startswith("|") for x in body):
            intro = " ".join(body) + "\n\n"
            continue
        place = source.at(f"lines {start + 1} to {end}")
        found.append(Table(body, f"{intro}**{title}**", place))
        intro = ""
    return found


def families(record: list[Mapping], source: Source) -> Table:
    """Draft families that were served with the flag off and on. A row is recorded only
    when tokens and accept histograms of the two were the same."""
    rows = [
        "| draft | layout | accept length | dense, bytes a step | packed |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for row in record:
        cells = (
            row["family"],
            row["layout"],
            f"{row['accept_length']:.2f}",
            f"{row['dense_bytes_per_step']:.0f}",
            row["reason"] or f"{row['packed_bytes_per_step']:.0f}",
        )
        rows.append("| " + " | ".join(cells) + " |")
    context = (
        "Served twice, the flag off and on, with the same tokens and accept histograms: "
        "small made-up models on a CPU, FP32. Bytes are the output of the draft's "
        "vocabulary all-gathers a step."
    )
    return Table(rows, context, source.at())


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
    context = f"Sampling layer alone, {record['dtype']}, {made_on(record)}."
    return Table(rows, context, source.at("results"))


def gpu_of(record: Mapping) -> object:
    """The GPU that a record names, whichever of our scripts wrote it."""
    machine = record.get("hardware") or record.get("machine") or {}
    return machine.get("gpu") or machine.get("gpus") if machine else None


def made_on(record: Mapping) -> str:
    """Machine, and commit and date where a record has them."""
    machine = record.get("hardware") or record["machine"]
    gpu = gpu_of(record)
    parts = [str(gpu)] if gpu else []
    parts += [f"{machine['cpu']}, {machine['cores']} cores"]
    if "commit" in record:
        parts.append(f"commit {record['commit']} of {record['date']}")
    return ", ".join(parts)


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
        f"SGLang {record['sglang_version']}, {made_on(record)}."
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
        differing = len(record["requests_differing"])
        text = f"{record['requests_compared']}, {differing}"
        rows.append(f"| requests compared, differing | {text} |")
    lengths = [f"{arms[arm]['accept_length']:.3f}" for arm in ("dense", "packed")]
    rows.append(f"| accept length, dense and packed | {', '.join(lengths)} |")
    errors = [str(arms[arm]["request_errors"]) for arm in ("dense", "packed")]
    rows.append(f"| request errors, dense and packed | {', '.join(errors)} |")
    context = f"{record['model']}, TP{record['tp']}, {made_on(record)}."
    return Table(rows, context, source.at("outputs_identical, arms"))


ARMS_OF_POLICIES = {
    "none": "no speculation",
    "fixed": "{} drafts every time",
    "without": "adaptive, by accept lengths (SGLang's policy)",
    "with": "adaptive, by the draft's confidence",
}


def policies(record: Mapping, source: Source) -> Table:
    """Rows that the target verified under each policy, for the same output."""
    rows = [
        "| number of drafts | rows verified | output tokens/s |",
        "| --- | ---: | ---: |",
    ]
    for arm, name in ARMS_OF_POLICIES.items():
        found = record["policy"][arm]
        verified = found["verified_tokens"]
        count = "" if verified is None else f"{verified:.0f}"
        title = name.format(record["num_steps"])
        speed = spread(found["output_tok_per_s_spread"])
        rows.append(f"| {title} | {count} | {speed} |")
    same = yes(record["policy"]["outputs_identical"])
    context = (
        f"Adaptive steps by confidence: easy and hard prompts in turn, a made-up model, "
        f"TP{record['tp']}, SGLang {record['sglang_version']}, {made_on(record)}. "
        f"Outputs identical under all: {same}."
    )
    return Table(rows, context, source.at("policy"))


def yes(value: bool) -> str:
    return "yes" if value else "**no**"
