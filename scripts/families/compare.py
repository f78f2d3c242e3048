"""What has to hold between a family with the flag off and on."""

from __future__ import annotations

from statistics import mean
from typing import Any

from .catalog import UNIT_CASES, Family
from .serve import Served

# Below 1.2 nearly nothing is accepted, and equal outputs would say little.
LEAST_ACCEPT_LENGTH = 1.2
Row = dict[str, Any]


def accept_length(served: Served) -> float:
    """Mean over all answers, bonus tokens included."""
    return mean(answer.accept_length for answer in served.answers)


def faults(family: Family, off: Served, on: Served) -> list[str]:
    """Everything that is not as it has to be; empty when the arms agree."""
    histograms = [
        [answer.correct_histogram for answer in arm.alone] for arm in (off, on)
    ]
    if not family.varies:
        for found, arm in zip(histograms, (off, on)):
            found += [answer.correct_histogram for answer in arm.together]
    least = min(len(set(ids)) for ids in off.ids)
    checks = {
        "other tokens with the flag on": on.ids == off.ids,
        f"only {least} distinct tokens: says little": least > family.tokens // 4,
        "other accept histograms with the flag on": histograms[0] == histograms[1],
        "no accept histogram": all(histograms[0]) and all(histograms[1]),
        f"accept length {accept_length(off):.2f}: says little": (
            accept_length(off) > LEAST_ACCEPT_LENGTH
        ),
        f"the flag is off, and the status is {off.status}": off.status is None,
    }
    broken = [text for text, holds in checks.items() if not holds]
    return broken + _path_faults(family, on) + _exchange_faults(family, off, on)


def _path_faults(family: Family, on: Served) -> list[str]:
    status = on.status or {}
    found = (status.get("path"), status.get("reason"))
    if found == (family.path, family.reason):
        return []
    return [f"path and reason are {found}, not {(family.path, family.reason)}"]


def _exchange_faults(family: Family, off: Served, on: Served) -> list[str]:
    """One collective a step on both sides, as many steps, fewer bytes if packed."""
    broken = []
    for name, arm in (("off", off), ("on", on)):
        found = arm.exchange
        if not found.steps or found.collectives != found.steps:
            broken.append(
                f"{name}: {found.collectives} vocabulary collectives in "
                f"{found.steps} draft steps"
            )
        if not found.ranks_agree:
            broken.append(f"{name}: the ranks counted different collectives")
    if on.exchange.steps != off.exchange.steps:
        broken.append("another number of draft steps with the flag on")
    dense, packed = off.exchange.output_bytes, on.exchange.output_bytes
    if not (packed < dense if family.path == "packed" else packed == dense):
        broken.append(f"{packed} bytes with the flag on, {dense} with it off")
    return broken


def family_row(name: str, family: Family, off: Served, on: Served) -> Row:
    """A row of `build/families.json`."""
    packed = family.path == "packed"
    return {
        "family": name,
        "layout": layout_of(family),
        "path": family.path,
        "reason": family.reason,
        "tested_by": family.tested_by,
        "packed_bytes_per_step": _rounded(on) if packed else None,
        "dense_bytes_per_step": _rounded(off),
        "accept_length": round(accept_length(on), 2),
    }


def layout_of(family: Family) -> str:
    """Ranks, head and vocabulary."""
    return f"TP {family.tp}, {family.layout}"


def _rounded(served: Served) -> float:
    return round(served.exchange.bytes_per_step, 1)


def unit_rows() -> list[Row]:
    """Rows of what is tested without a server: nothing was counted there."""
    return [
        {
            "family": name,
            "layout": case.layout,
            "path": case.path,
            "reason": case.reason,
            "tested_by": case.tested_by,
            "packed_bytes_per_step": None,
            "dense_bytes_per_step": None,
            "accept_length": None,
        }
        for name, case in UNIT_CASES.items()
    ]
