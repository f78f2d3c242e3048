"""The report as text for a terminal."""

from __future__ import annotations

from typing import Any

_HEAD = (
    "position  outcomes  predicted  observed  Brier  ECE    "
    "T      predicted  Brier  ECE   after"
)


def render(report: dict[str, Any]) -> str:
    """Positions, accept length, policies and checks."""
    lines = [_HEAD, *map(_position, report["positions"]), ""]
    length = report["accept_length"]
    lines.append(
        f"accept length: observed {_number(length['observed'], 2)}, expected "
        f"{_number(length['expected'], 2)}, with the temperatures "
        f"{_number(length['expected_after'], 2)}"
    )
    if report["policy"] is not None:
        lines += ["", *_policy(report["policy"])]
    failed = [name for name, held in report["checks"].items() if not held]
    lines += [
        "",
        f"checks: {'all hold' if not failed else 'FAILED ' + ', '.join(failed)}",
    ]
    return "\n".join(lines)


def _position(entry: dict[str, Any]) -> str:
    after, note = entry["after"], entry["fit"]["note"]
    return (
        f"{entry['position']:8}  {entry['samples']:8}  {_number(entry['predicted']):>9}  "
        f"{_number(entry['observed']):>8}  {_number(entry['brier']):>5}  "
        f"{_number(entry['ece']):>5}  {entry['temperature']:5.2f}  "
        f"{_number(after['predicted']):>9}  {_number(after['brier']):>5}  "
        f"{_number(after['ece']):>5}{'  ' + note if note else ''}"
    )


def _policy(policy: dict[str, Any]) -> list[str]:
    lines = [
        "arm      verified tokens  verify rounds  output tok/s  accept length by class"
    ]
    for name, arm in policy.items():
        if not isinstance(arm, dict):
            continue
        classes = ", ".join(
            f"{kind} {_number(figures['accept_length'], 2)}"
            for kind, figures in arm["classes"].items()
        )
        verified = _number(arm["verified_tokens"], 0)
        speed = _number(arm["output_tok_per_s"], 1)
        rounds = arm["verify_rounds"]
        lines.append(f"{name:8} {verified:>15}  {rounds:>13}  {speed:>12}  {classes}")
    same = "identical" if policy["outputs_identical"] else "NOT identical"
    return [*lines, f"outputs of {policy['requests_compared']} prompts: {same}"]


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
