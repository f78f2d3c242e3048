"""The report as one HTML file: no script, no request to anywhere, charts inside."""

from __future__ import annotations

from html import escape
from typing import Any

from scripts.ab.markdown import environment, raw_records
from scripts.ab.tables import Table, charts, outputs_line, tables

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1100px; padding: 16px; color: #222; background: #fff;
  font: 16px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.4rem; line-height: 1.25; }
h2 { font-size: 1.15rem; margin-top: 2rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
.verdict { border-left: 5px solid #1565c0; padding: .6rem .9rem; background: #eef4fb;
  font-size: 1.1rem; font-weight: 600; }
.open { border-color: #b26a00; background: #fdf4e7; }
.charts { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 330px), 1fr)); }
.charts figure { margin: 0; border: 1px solid #ddd; padding: 6px; max-width: 520px; }
svg { display: block; width: 100%; height: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { border: 1px solid #ccc; padding: 4px 8px; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
li { overflow-wrap: anywhere; margin: .2rem 0; }
footer { color: #555; font-size: .85rem; margin-top: 2rem; }
@media (max-width: 640px) {
  th, td { white-space: normal; padding: 3px 4px; font-size: .75rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .charts { grid-template-columns: 1fr 1fr; }
  figure, table, .verdict { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; }
  th, td { white-space: normal; }
}
"""


def render_page(report: dict[str, Any]) -> str:
    """The whole report as a page."""
    state = "verdict" if report["comparable"] else "verdict open"
    title = escape(report["title"])
    parts = [
        f"<h1>{title}</h1>",
        f"<p class='{state}'>{escape(report['verdict'])}</p>",
        f"<p>{escape(outputs_line(report))} {escape(report['notes'])}</p>",
        _list(report["interruptions"]),
        "<div class='charts'>",
        *(f"<figure>{svg}</figure>" for svg in charts(report).values()),
        "</div>",
        "<h2>Figures</h2>",
        *(_table(table) for table in tables(report)),
        "<h2>Not measured</h2>",
        _list(report["not_measured"]),
        "<h2>How to read it</h2>",
        f"<p>{escape(report['rule'])}</p>",
        _list([f"{key}: {text}" for key, text in report["definitions"].items()]),
        "<h2>Environment</h2>",
        _list(environment(report)),
        "<h2>Raw records</h2>",
        _list(raw_records(report)),
        f"<footer>Profile {escape(report['profile'])}, reported at "
        f"{escape(report['reported_at'])} (UTC).</footer>",
    ]
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    return (
        f"<h3>{escape(table.title)}</h3><div class='scroll'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _list(lines: list[str]) -> str:
    if not lines:
        return ""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
