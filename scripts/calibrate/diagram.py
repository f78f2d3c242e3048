"""The reliability diagram and the policies' bars, each as PNG and SVG."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

BEFORE, AFTER = "#8c8c8c", "#1f77b4"
_COLUMNS = 4
# Area of a dot that holds all outcomes, in points squared.
_DOT = 160.0


def draw(report: dict[str, Any], folder: Path) -> list[Path]:
    """Write `reliability` and, where policies were compared, `policy`; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = _save(_reliability(report), folder / "reliability", report)
    if report["policy"] is not None:
        paths += _save(_policy(report), folder / "policy", report)
    return paths


def _save(figure: Any, stem: Path, report: dict[str, Any]) -> list[Path]:
    figure.text(0.01, -0.02, _conditions(report), fontsize=7, color="#555555")
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    plt.close(figure)
    return paths


def _reliability(report: dict[str, Any]) -> Any:
    positions = report["positions"]
    columns = min(_COLUMNS, len(positions))
    rows = math.ceil(len(positions) / columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(2.7 * columns, 2.9 * rows),
        layout="constrained",
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    for axes, entry in zip(grid.flat, positions):
        _position(axes, entry)
    for axes in grid.flat[len(positions) :]:
        axes.set_visible(False)
    figure.supxlabel("predicted acceptance", fontsize=9)
    figure.supylabel(
        "observed acceptance, 95 % interval; area: share of the outcomes", fontsize=9
    )
    first = grid[0][0]
    if first.get_legend_handles_labels()[0]:
        legend = first.legend(frameon=False, loc="upper left", fontsize=7)
        for handle in legend.legend_handles:
            handle.set_sizes([20.0])
    figure.suptitle("Draft probability against acceptance, by position")
    return figure


def _position(axes: Any, entry: dict[str, Any]) -> None:
    axes.plot([0, 1], [0, 1], color="#bbbbbb", linestyle="--", linewidth=1)
    for name, color, part in (
        ("exact probability", BEFORE, entry),
        ("with temperature", AFTER, entry["after"]),
    ):
        bins = part["bins"]
        x, y = ([one[key] for one in bins] for key in ("predicted", "observed"))
        # Rounding may leave an end of the interval a hair inside the share.
        low = [max(0.0, o["observed"] - o["observed_low"]) for o in bins]
        high = [max(0.0, o["observed_high"] - o["observed"]) for o in bins]
        axes.errorbar(x, y, yerr=[low, high], fmt="none", ecolor=color, elinewidth=0.6)
        share = [one["count"] / max(1, entry["samples"]) for one in bins]
        sizes = [_DOT * (0.1 + value) for value in share]
        axes.scatter(
            x, y, sizes, color=color, alpha=0.8, label=name, linewidths=0, clip_on=False
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_title(entry), fontsize=8)


def _title(entry: dict[str, Any]) -> str:
    head = f"position {entry['position']}, {entry['samples']} outcomes"
    if entry["ece"] is None:
        return head
    return (
        f"{head}\nT {entry['temperature']:.2f}, ECE {entry['ece']:.3f} to "
        f"{entry['after']['ece']:.3f}"
    )


def _policy(report: dict[str, Any]) -> Any:
    arms = {
        name: arm
        for name, arm in report["policy"].items()
        if isinstance(arm, dict) and arm["verified_tokens"] is not None
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.4), layout="constrained")
    for axes, key, title in (
        (left, "verified_tokens", "Verified tokens, one round of all prompts"),
        (right, "output_tok_per_s", "Output tokens per second, median of rounds"),
    ):
        for place, (name, arm) in enumerate(arms.items()):
            color = AFTER if name == "with" else BEFORE
            axes.bar(place, arm[key], 0.6, color=color)
            axes.annotate(
                f"{arm[key]:,.0f}" if arm[key] >= 100 else f"{arm[key]:.1f}",
                (place, arm[key]),
                (0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        axes.set_xticks(range(len(arms)), list(arms))
        axes.set_title(title, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _conditions(report: dict[str, Any]) -> str:
    hardware = report["hardware"]
    samples = report["samples"]
    parts = [f"{samples['report']} of {samples['verifies']} verifies, the later half"]
    if report.get("sglang_version"):
        parts.append(f"SGLang {report['sglang_version']}, {report['model']}")
    parts.append(f"{hardware['cpu']}, {hardware['cores']} cores")
    return "; ".join(parts)
