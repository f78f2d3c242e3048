"""The report as PNG charts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

COLORS = {"dense": "#8c8c8c", "packed": "#1f77b4"}
_BAR = 0.36


def draw_charts(report: dict[str, Any], folder: Path) -> list[Path]:
    """Write `throughput.png` and `bytes.png`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = {"throughput.png": _throughput, "bytes.png": _bytes}
    paths = []
    for name, draw in charts.items():
        figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
        draw(axes, report)
        axes.spines[["top", "right"]].set_visible(False)
        figure.text(0.01, -0.03, _conditions(report), fontsize=7, color="#555555")
        figure.savefig(folder / name, dpi=150, bbox_inches="tight")
        plt.close(figure)
        paths.append(folder / name)
    return paths


def _throughput(axes: Any, report: dict[str, Any]) -> None:
    arms = report["arms"]
    for offset, (arm, figures) in enumerate(arms.items()):
        by_level = figures["output_tok_per_s_by_concurrency"]
        for place, spread in enumerate(by_level.values()):
            x = place + (offset - (len(arms) - 1) / 2) * _BAR
            low = spread["median"] - spread["min"]
            high = spread["max"] - spread["median"]
            axes.bar(
                x,
                spread["median"],
                _BAR * 0.9,
                yerr=[[low], [high]],
                capsize=4,
                color=COLORS[arm],
                label=arm if place == 0 else None,
            )
            samples = spread["samples"]
            axes.scatter([x] * len(samples), samples, s=10, color="black", zorder=3)
            label = f"{spread['median']:.1f}"
            axes.annotate(
                label,
                (x, spread["max"]),
                (0, 4),
                textcoords="offset points",
                ha="center",
            )
    axes.set_xticks(range(len(by_level)), list(by_level))
    axes.set_xlabel("requests in flight")
    axes.set_ylabel("output tokens per second")
    axes.set_title("Output throughput: median, range and every sample")
    axes.legend(frameon=False, loc="upper left")


def _bytes(axes: Any, report: dict[str, Any]) -> None:
    key = "draft_collective_bytes_per_token"
    values = {arm: f[key] for arm, f in report["arms"].items() if f[key]}
    for place, (arm, value) in enumerate(values.items()):
        axes.bar(place, value, 0.5, color=COLORS[arm])
        axes.annotate(
            f"{value:,.0f}",
            (place, value),
            (0, 4),
            textcoords="offset points",
            ha="center",
        )
    axes.set_xticks(range(len(values)), list(values))
    if values:
        axes.set_yscale("log")
        axes.set_ylim(1, max(values.values()) * 10)
    axes.set_ylabel("bytes per row, log scale")
    axes.set_title("Draft all-gather output per row, counted at the calls")


def _conditions(report: dict[str, Any]) -> str:
    hardware = report["hardware"]
    return (
        f"SGLang {report['sglang_version']}, {report['model']}, V = "
        f"{report['vocab_size']}, {report['dtype']}, TP {report['tp']}, "
        f"{report['num_steps']} draft steps; {hardware['cpu']}, {hardware['cores']} cores"
    )
