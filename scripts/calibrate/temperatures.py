"""`temperatures.json`: the fit as SGLang's STS file."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.calibrate.pairs import Pairs
from scripts.calibrate.positions import position_figures
from scripts.calibrate.statistics import Fit


def write_temperatures(path: Path, fits: list[Fit], pairs: Pairs, source: str) -> None:
    """What `--speculative-draft-confidence-temperatures` reads.

    Its `ece_before` and `ece_after` are those of the later half of `pairs`; left out when
    a position has no outcome there.
    """
    early, late = pairs.halves()
    figures = position_figures(late, fits)
    calibration: dict[str, object] = {
        "temperatures": [fit.temperature for fit in fits],
        "dataset": source,
        "num_samples": len(early),
    }
    if all(entry["samples"] for entry in figures):
        calibration["ece_before"] = [entry["ece"] for entry in figures]
        calibration["ece_after"] = [entry["after"]["ece"] for entry in figures]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(calibration, indent=1) + "\n")
