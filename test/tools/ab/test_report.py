"""Verdict, tables, charts and page, from a made-up summary."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from scripts.ab.charts import WIDTH, Series, bar_chart, interval_chart, number, ticks
from scripts.ab.markdown import render_markdown
from scripts.ab.page import render_page
from scripts.ab.profile import load_profile
from scripts.ab.stats import RULE, compare
from scripts.ab.tables import charts
from scripts.ab.verdict import comparable, not_measured, verdict
from scripts.serving.spread import Spread

SIDES = ["dense", "packed"]
DIFFERENT = {"compared": 8, "starts": 6, "differing": [1, 5], "failed": 0}


def metric(control: list[float], candidate: list[float]) -> dict:
    return {
        "sides": {
            side: Spread.of(values).to_dict()
            for side, values in zip(SIDES, (control, candidate))
        },
        "ratio": compare(control, candidate).to_dict(),
    }


def side(path: str, **changes) -> dict:
    spread = Spread.of([1000.0, 1010.0, 1005.0]).to_dict()
    return {
        "ready_s": spread,
        "memory_ready_mib": spread,
        "memory_peak_mib": spread,
        "memory_kind": "PSS",
        "accept_length_load": spread,
        "accept_length_check": 2.3,
        "draft_path": [{"mode": "on", "path": path, "reason": None}],
        "command": ["python", "-m", "sglang.launch_server", "--tp", "4"],
        **changes,
    }


def report(
    candidate: tuple[float, ...] = (120.0, 121.0, 119.0),
    profile: str = "cpu-small",
    dtype: str | None = None,
    **changes,
) -> dict:
    figures = metric([100.0, 101.0, 99.0], list(candidate))
    names = ("output_tok_per_s", "ttft_ms", "tpot_ms", "e2e_ms")
    total = figures["ratio"]
    points = [
        {
            "client": "sglang",
            "concurrency": level,
            "metrics": dict.fromkeys(names, figures),
            "records": {s: [f"raw/00-{s}/sglang-c{level:03d}.json"] for s in SIDES},
        }
        for level in (1, 8)
    ]
    settings = load_profile(
        profile, concurrency=[1, 8], requests=[4, 24], dtype=dtype
    ).to_dict()
    summary = {
        "sides": SIDES,
        "points": points,
        "overall": {
            "sglang": {
                "pairs": [0, 1, 2],
                "metrics": dict.fromkeys(names, total),
                "single": {n: {"1": total["finding"], "8": "<b>"} for n in names},
            }
        },
        "by_side": {"dense": side("dense"), "packed": side("packed")},
        "outputs": {"compared": 8, "starts": 6, "differing": [], "failed": 0},
        "starts_complete": 6,
        "starts_planned": 6,
        "interruptions": [],
        "errors": {s: {"requests": 10, "errors": 0, "messages": []} for s in SIDES},
    }
    summary |= changes
    return summary | {
        "profile": "cpu-small",
        "title": "A title & more",
        "notes": "",
        "verdict": verdict(summary, settings),
        "comparable": comparable(summary, settings),
        "rule": RULE,
        "definitions": {"ratio": "candidate over control"},
        "not_measured": not_measured(summary, settings, attached=False),
        "settings": settings,
        "served": "fork tree 0123",
        "commits": ["abc"],
        "versions": [{"sglang": "0.5.23"}],
        "hardware": [
            {"cpu": "a CPU", "cores": 2, "memory_gib": 8, "system": "s", "python": "3"}
        ],
        "measured": {"first": "then", "last": "now"},
        "reported_at": "now",
    }


def test_a_difference_is_said_with_its_interval() -> None:
    """Red when a win has no size, no interval or no conditions."""
    made = report()
    assert made["comparable"]
    sentence = made["verdict"]
    assert sentence.startswith("packed gives 20.0 % more output throughput than dense")
    assert "ratio 1.200" in sentence and "3 pairs" in sentence and "sglang" in sentence
    low, high = re.search(r"interval ([\d.]+) to ([\d.]+)", sentence).groups()
    assert 1 < float(low) < 1.2 < float(high)
    assert "% less" in report(candidate=(80.0, 81.0, 79.0))["verdict"]


def test_noise_is_no_difference() -> None:
    """Red when a ratio within the noise is sold as a win."""
    made = report(candidate=(105.0, 98.0, 106.0))
    assert made["verdict"].startswith("No difference shown")
    assert "gives" not in made["verdict"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"starts_complete": 5}, "5 of 6 server starts"),
        (
            {
                "errors": {
                    "dense": {"requests": 9, "errors": 0, "messages": []},
                    "packed": {"requests": 9, "errors": 2, "messages": ["x"]},
                }
            },
            "requests failed (0 dense, 2 packed)",
        ),
        (
            {
                "by_side": {
                    "dense": side("dense"),
                    "packed": side(
                        "dense", draft_path=[{"path": "dense", "reason": "topk"}]
                    ),
                }
            },
            "did not draft packed (reason: topk)",
        ),
        (
            {
                "by_side": {
                    "dense": side("dense"),
                    "packed": side("packed", draft_path=[]),
                }
            },
            "the server does not say",
        ),
        (
            {"outputs": {"compared": 8, "starts": 6, "differing": [1], "failed": 1}},
            "greedy check failed",
        ),
        ({"outputs": DIFFERENT}, "greedy answers differ in 2 prompts"),
    ],
)
def test_obstacles_come_before_a_win(changes: dict, text: str) -> None:
    """Red when a number is given for what cannot be compared."""
    made = report(**changes)
    assert made["verdict"].startswith("No verdict") and text in made["verdict"]
    assert not made["comparable"] and "class='verdict open'" in render_page(made)


@pytest.mark.parametrize(
    "served",
    [
        {"profile": "qwen3.5-27b-fp8-tp4"},
        {"profile": "xeon-tp-sockets"},
        {"dtype": "bfloat16"},
    ],
)
def test_different_answers_qualify_a_win(served: dict) -> None:
    """Red when a reader of a real model's win is not told that answers differ."""
    made = report(outputs=DIFFERENT, **served)
    text = "greedy answers differ in 2 prompts"
    assert made["comparable"] and "20.0 % more" in made["verdict"]
    assert text in " ".join(made["not_measured"])
    assert text not in " ".join(report(**served)["not_measured"])


def test_what_was_not_measured_is_said() -> None:
    """Red when the missing client, GPU or real prompts are not named."""
    notes = " ".join(report()["not_measured"])
    for piece in (
        "aiperf client was not run",
        "No GPU",
        "random tokens",
        "More than 8",
    ):
        assert piece in notes


def test_markdown_has_every_figure() -> None:
    """Red when a table, a record or the rule does not reach the reader."""
    text = render_markdown(report())
    for piece in (
        "100 (99 to 101)",
        "1.200 (",
        "raw/00-packed/sglang-c008.json",
        "charts/ratio.svg",
        "Holm",
        "TTFT",
        "TPOT",
        "a CPU, 2 cores",
        "8 of 8 fixed prompts",
        "commit: abc",
        "0 of 10",
    ):
        assert piece in text


class _Page(HTMLParser):
    """Collects tags, and what would be fetched from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        names = dict(attrs)
        self.fetched += [names[key] for key in ("src", "href") if key in names]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_self_contained() -> None:
    """Red when the page needs the network, breaks on a phone, or lets text be markup."""
    page = render_page(report())
    parser = _Page()
    parser.feed(page)
    assert parser.open == [] and parser.fetched == []
    assert "script" not in parser.count and "url(" not in page and "@import" not in page
    assert parser.count["svg"] == 5 and parser.count["table"] == 5
    assert "width=device-width" in page and "@media print" in page
    assert "&lt;b&gt;" in page and "<b>" not in page and "A title &amp; more" in page


def test_charts_stay_inside_their_frame() -> None:
    """Red when a mark or a label is drawn where nobody sees it, or the SVG is broken."""
    for svg in charts(report(candidate=(300.0, 20.0, 1.0))).values():
        root = ElementTree.fromstring(svg)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        assert width == WIDTH
        for node in root.iter():
            for name in ("x", "x1", "x2", "cx", "y", "y1", "y2", "cy"):
                top = width if "x" in name else height
                if name in node.attrib:
                    assert 0 <= float(node.attrib[name]) <= top, ElementTree.tostring(
                        node
                    )


def test_charts_without_samples() -> None:
    """Red when a comparison that has only begun cannot be drawn."""
    empty = Series("dense", [None, 1.0], [None, None], [None, None])
    for draw in (
        lambda: interval_chart("t", ["1", "2"], [empty], "x"),
        lambda: bar_chart("t", ["1", "2"], [empty]),
    ):
        assert "<circle" in draw() or "<rect" in draw()


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (0.93, 1.31), (0.0, 7300.0), (0.998, 1.002), (1, 1)]
)
def test_ticks(low: float, high: float) -> None:
    """Red when an axis has no numbers, too many, or such outside of it."""
    found = ticks(low, high)
    assert 1 <= len(found) <= 11 and all(low <= t <= high for t in found)
    assert len({number(t) for t in found}) == len(found) or high - low < 0.01
