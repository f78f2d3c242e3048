"""One honest sentence, and what the measurement leaves open; no input or output."""

from __future__ import annotations

from typing import Any

from scripts.ab.plan import AGAIN
from scripts.ab.stats import HIGHER, MIN_PAIRS, NONE

HEADLINE = "output_tok_per_s"


def verdict(summary: dict[str, Any], settings: dict[str, Any]) -> str:
    """The sentence. It names a difference only when nothing speaks against one."""
    return _obstacle(summary, settings) or " ".join(
        _finding(summary, client, overall["metrics"][HEADLINE])
        for client, overall in summary["overall"].items()
    )


def comparable(summary: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether the verdict may rest on the figures."""
    return _obstacle(summary, settings) is None


def _same_every_time(settings: dict[str, Any]) -> bool:
    """Whether greedy answers have to be equal: the CPU engine in FP32.

    `dtype` is the made-up model's; a served checkpoint brings its own.
    """
    return settings["engine"] == "stand-in" and settings["dtype"] == "float32"


def _obstacle(summary: dict[str, Any], settings: dict[str, Any]) -> str | None:
    done, planned = summary["starts_complete"], summary["starts_planned"]
    control, candidate = summary["sides"]
    if done < planned:
        return f"No verdict: {done} of {planned} server starts are measured."
    errors = {side: e["errors"] for side, e in summary["errors"].items()}
    if any(errors.values()):
        counts = ", ".join(f"{n} {side}" for side, n in errors.items())
        return f"No verdict: requests failed ({counts})."
    if summary["outputs"]["failed"]:
        return "No verdict: requests of the greedy check failed."
    if (differing := summary["outputs"]["differing"]) and _same_every_time(settings):
        return f"No verdict: greedy answers differ in {len(differing)} prompts."
    if candidate != AGAIN:
        paths = summary["by_side"][candidate]["draft_path"]
        dense = [path for path in paths if path.get("path") != "packed"]
        if dense or not paths:
            reason = dense[0].get("reason") if dense else "the server does not say"
            return (
                f"No verdict: the candidate did not draft packed (reason: {reason}), "
                "so both sides did the same work."
            )
    if any(not o["metrics"] for o in summary["overall"].values()):
        return "No verdict: no pair of server starts was measured."
    return None


def _finding(summary: dict[str, Any], client: str, ratio: dict[str, Any]) -> str:
    control, candidate = summary["sides"]
    pairs = len(ratio["pairs"])
    interval = (
        f"95 % interval {ratio['low']:.3f} to {ratio['high']:.3f}, {pairs} pairs"
        if ratio["low"] is not None
        else f"{pairs} pair, so no interval"
    )
    where = f"over all concurrencies ({client} client, {interval})"
    if ratio["finding"] == NONE:
        few = f"; {MIN_PAIRS} pairs are needed" if pairs < MIN_PAIRS else ""
        return (
            f"No difference shown in output throughput between {control} and {candidate}: "
            f"ratio {ratio['ratio']:.3f} {where}{few}."
        )
    word = "more" if ratio["finding"] == HIGHER else "less"
    change = abs(ratio["ratio"] - 1) * 100
    return (
        f"{candidate} gives {change:.1f} % {word} output throughput than {control}: "
        f"ratio {ratio['ratio']:.3f} {where}."
    )


def not_measured(
    summary: dict[str, Any], settings: dict[str, Any], attached: bool
) -> list[str]:
    """What a reader must not take from the report."""
    notes = []
    if settings["dataset"] is None:
        notes.append(
            "Prompts are random tokens: acceptance, and with it the share of drafting in "
            "the time, is another one on real traffic (give --dataset a ShareGPT-style file)."
        )
    for client in ("sglang", "aiperf"):
        if client not in settings["clients"]:
            notes.append(f"The {client} client was not run.")
    if settings["engine"] == "stand-in":
        notes.append(
            "No GPU: ranks are CPU processes with torch stand-ins for SGLang's kernels, so "
            "neither CUDA graphs nor NVLink, and nothing here predicts a GPU."
        )
    elif settings["engine"] == "cpu":
        notes.append("No GPU was measured.")
    if attached:
        notes.append(
            "Memory. And the servers were not started for each pair, so that the interval "
            "leaves out what differs from start to start, and each side had its own devices: "
            "swap them and measure again before you trust a small difference."
        )
    highest = max(settings["concurrency"])
    notes.append(
        f"More than {highest} requests in flight, and open-loop arrival rates."
    )
    notes.append("Power, and anything over several machines.")
    outputs = summary["outputs"]
    if outputs["differing"] and not _same_every_time(settings):
        notes.append(
            "Whether the sides answer alike: greedy answers differ in "
            f"{len(outputs['differing'])} prompts. In 16 bits two logits can tie and sums "
            "round differently, so compare with a null run (--null) before reading "
            "anything into it."
        )
    return notes
