"""Statistics, table and chart of the sampling layer's measurements."""

import math
import platform
from pathlib import Path
from statistics import median, quantiles
from typing import Dict, List, Sequence, Tuple

import torch

MIB = 1 << 20


def machine() -> Dict:
    """What the figures were measured on."""
    models = {
        line.split(":", 1)[1].strip()
        for line in _lines("/proc/cpuinfo")
        if line.startswith("model name")
    }
    return {
        "cpu": ", ".join(sorted(models)) or platform.processor() or "unknown",
        "cores": torch.multiprocessing.cpu_count(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "os": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _lines(path: str) -> List[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def spread(values: Sequence[float]) -> Dict[str, float]:
    """Median and the 10th and 90th percentile."""
    low, *_, high = quantiles(values, n=10, method="inclusive")
    return {"median": median(values), "p10": low, "p90": high}


def median_interval(
    values: Sequence[float], confidence: float = 0.95
) -> Tuple[float, float]:
    """Interval that holds the true median at least that surely (order statistics).

    The number of values below the median is binomial with p = 1/2, whatever their
    distribution; with too few values for the confidence it is their whole range.
    """
    ordered, n = sorted(values), len(values)
    tail, index = 0.0, 0
    while index < n // 2:
        tail += math.comb(n, index) / 2**n
        if 2 * tail > 1 - confidence:
            break
        index += 1
    low = max(index - 1, 0)
    return ordered[low], ordered[n - 1 - low]


def summarise(case: Dict, per_rank: List[Dict]) -> Dict:
    """One case over all ranks: a step lasts as long as its slowest rank needs."""
    times = {
        arm: [max(pair) for pair in zip(*(rank[f"{arm}_s"] for rank in per_rank))]
        for arm in ("dense", "packed")
    }
    ratios = [dense / packed for dense, packed in zip(*times.values())]
    peaks = {
        f"{arm}_peak_mib": max(rank[f"{arm}_peak_bytes"] for rank in per_rank) / MIB
        for arm in times
    }
    return {
        **case,
        "pairs": len(ratios),
        "steps_a_block": per_rank[0]["block"],
        **{f"{arm}_ms": spread([1e3 * s for s in times[arm]]) for arm in times},
        "ratio": {**spread(ratios), "median_95": median_interval(ratios)},
        **peaks,
    }


def markdown(report: Dict) -> str:
    """The machine and a table."""
    on = report["machine"]
    rows = [_line(row) for row in report["results"]]
    return "\n".join(
        [
            f"## TP {report['tp']}, {report['dtype']}",
            "",
            f"{on['cpu']}, {on['cores']} cores ({on['vector_instructions']}), "
            f"{on['os']}, Python {on['python']}, torch {on['torch']}; gloo ranks on one "
            f"machine, torch threads a rank: {report['threads']}; load average before: "
            f"{report['load_before']:.1f}.",
            "",
            *_HEADER,
            *rows,
            "",
        ]
    )


_HEADER = (
    "| V | rows | dense, ms | packed, ms | times faster | 95 % interval of the median "
    "| 10 to 90 % | pairs x steps | dense peak, MiB | packed peak, MiB |",
    "| ---: | ---: | ---: | ---: | ---: | --- | --- | --- | ---: | ---: |",
)


def _line(row: Dict) -> str:
    ratio = row["ratio"]
    cells = (
        row["vocab"],
        row["rows"],
        f"{row['dense_ms']['median']:.2f}",
        f"{row['packed_ms']['median']:.2f}",
        f"{ratio['median']:.2f}",
        "{:.2f} to {:.2f}".format(*ratio["median_95"]),
        f"{ratio['p10']:.1f} to {ratio['p90']:.1f}",
        f"{row['pairs']} x {row['steps_a_block']}",
        f"{row['dense_peak_mib']:.1f}",
        f"{row['packed_peak_mib']:.1f}",
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def chart(report: Dict, path: Path) -> None:
    """Milliseconds over rows, dense and packed, one panel a vocabulary."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = sorted({row["vocab"] for row in report["results"]})
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3.4 * len(panels), 3.4), sharey=True, squeeze=False
    )
    for axis, vocab in zip(axes[0], panels):
        rows = [row for row in report["results"] if row["vocab"] == vocab]
        for arm, colour in (("dense", "tab:red"), ("packed", "tab:blue")):
            middle = [row[f"{arm}_ms"]["median"] for row in rows]
            low, high = ([row[f"{arm}_ms"][p] for row in rows] for p in ("p10", "p90"))
            x = [row["rows"] for row in rows]
            axis.plot(x, middle, marker="o", markersize=3, color=colour, label=arm)
            axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.set(
            xscale="log",
            yscale="log",
            xlabel="rows",
            title=f"TP {report['tp']}, V {vocab}",
        )
        axis.set_xticks(x, labels=[str(value) for value in x], fontsize=7)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("ms (median, 10 to 90 %)")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
