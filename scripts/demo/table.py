"""The report as text for a terminal."""

from __future__ import annotations

from typing import Any

_ROWS = (
    ("output tok/s, concurrency {level}", None),
    ("accept length (bonus included)", "accept_length"),
    ("draft bytes per row of the gather", "draft_collective_bytes_per_token"),
    ("draft bytes per head row", "draft_collective_bytes_per_real_row"),
    ("draft bytes per proposed token", "draft_collective_bytes_per_proposed_token"),
    ("draft collectives per step", "draft_collectives_per_step"),
    ("peak memory, all processes, MiB", "peak_rss_mib"),
    ("request errors", "request_errors"),
)


def render(report: dict[str, Any]) -> str:
    """A table of both arms, then what was compared and what failed."""
    arms = report["arms"]
    rows = [["", *arms]]
    for label, key in _ROWS:
        if key is None:
            rows += _throughput_rows(label, arms)
        else:
            rows.append([label, *(_number(figures[key]) for figures in arms.values())])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, "-" * len(lines[0]))
    return "\n".join(lines + ["", *_summary(report)])


def _throughput_rows(label: str, arms: dict[str, Any]) -> list[list[str]]:
    first = next(iter(arms.values()))["output_tok_per_s_by_concurrency"]
    rows = []
    for level in first:
        cells = [
            figures["output_tok_per_s_by_concurrency"][level]
            for figures in arms.values()
        ]
        texts = [f"{c['median']:.1f} ({c['min']:.1f} to {c['max']:.1f})" for c in cells]
        rows.append([label.format(level=level), *texts])
    return rows


def _summary(report: dict[str, Any]) -> list[str]:
    lines = [
        f"outputs identical: {_yes(report['outputs_identical'])}, accept lengths "
        f"identical: {_yes(report['accept_lengths_identical'])} "
        f"({report['requests_compared']} requests in every run)"
    ]
    for level, ratio in report["speedup_by_concurrency"].items():
        lines.append(
            f"packed over dense, median output tok/s, concurrency {level}: {ratio:.2f}"
        )
    for arm, figures in report["arms"].items():
        if figures["draft_path"] is not None:
            lines.append(f"{arm}: {figures['draft_path']}")
    failed = [name for name, passed in report["checks"].items() if not passed]
    lines.append(
        f"checks failed: {', '.join(failed)}" if failed else "all checks passed"
    )
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _line(row: list[str], widths: list[int]) -> str:
    first, *rest = (cell.rjust(width) for cell, width in zip(row, widths))
    return "  ".join([row[0].ljust(widths[0]), *rest])
