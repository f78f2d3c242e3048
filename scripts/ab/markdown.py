"""The report as Markdown."""

from __future__ import annotations

from typing import Any

from scripts.ab.tables import Table, charts, outputs_line, tables


def render_markdown(report: dict[str, Any]) -> str:
    """The whole report; charts are images in `charts/` beside it."""
    parts = [f"# {report['title']}", f"**{report['verdict']}**", outputs_line(report)]
    parts += [f"- {note}" for note in report["interruptions"]]
    if report["notes"]:
        parts.append(report["notes"])
    parts += [f"![{name}](charts/{name}.svg)" for name in charts(report)]
    parts += [_table(table) for table in tables(report)]
    parts.append("## Not measured\n\n" + _list(report["not_measured"]))
    parts.append("## How to read it\n\n" + report["rule"])
    parts.append(_list([f"{k}: {v}" for k, v in report["definitions"].items()]))
    parts.append("## Environment\n\n" + _list(environment(report)))
    parts.append("## Raw records\n\n" + _list(raw_records(report)))
    return "\n\n".join(parts) + "\n"


def environment(report: dict[str, Any]) -> list[str]:
    """Where and from what it was measured, a line each."""
    lines = []
    for hardware in report["hardware"]:
        gpus = [gpu["name"] for gpu in hardware.get("gpus", [])]
        lines.append(
            f"hardware: {hardware['cpu']}, {hardware['cores']} cores, "
            f"{hardware['memory_gib']} GiB; GPUs: {', '.join(gpus) or 'none'}"
        )
        lines.append(f"system: {hardware['system']}, Python {hardware['python']}")
    for versions in report["versions"]:
        lines.append("versions: " + ", ".join(f"{k} {v}" for k, v in versions.items()))
    lines.append(f"commit: {', '.join(report['commits'])}; served: {report['served']}")
    lines.append(
        f"measured: {report['measured']['first']} to {report['measured']['last']} (UTC)"
    )
    for side in report["sides"]:
        command = report["by_side"][side]["command"]
        if command:
            lines.append(f"{side}: {' '.join(command[1:])}")
    kinds = {s["memory_kind"] for s in report["by_side"].values() if s["memory_kind"]}
    return lines + [f"memory: {kind}" for kind in sorted(kinds)]


def raw_records(report: dict[str, Any]) -> list[str]:
    """The records behind every point, by client and concurrency."""
    lines = []
    for point in report["points"]:
        names = [name for side in point["records"].values() for name in side]
        if names:
            where = f"{point['client']}, {point['concurrency']} in flight"
            lines.append(f"{where}: {', '.join(names)}")
    return lines


def _table(table: Table) -> str:
    lines = [_row(table.head), _row(["---"] * len(table.head))]
    lines += [_row(row) for row in table.rows]
    return f"### {table.title}\n\n" + "\n".join(lines)


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _list(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
