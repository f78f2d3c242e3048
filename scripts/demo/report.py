"""`report.json`: the figures of both arms, every raw run, and the checks on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scripts.demo.compare import (
    compare_accept_lengths,
    compare_outputs,
    mean_accept_length,
    phases_of,
    speedup,
)
from scripts.demo.measure import ArmRun, Phase
from scripts.demo.settings import ROOT, Settings
from scripts.serving.plain import plain
from scripts.serving.spread import Spread

DEFINITIONS = {
    "output_tok_per_s": "median over server starts and rounds of output tokens of all "
    "requests over the wall time of the phase, at the largest concurrency",
    "accept_length": "output tokens over verify rounds, bonus token included",
    "draft_collective_bytes_per_token": "all-gather output bytes of draft steps on one "
    "rank over the rows of those calls (padded rows on the packed path)",
    "draft_collective_bytes_per_real_row": "the same bytes over the rows of the draft "
    "head, without padding",
    "draft_collective_bytes_per_proposed_token": "the same bytes over the draft tokens "
    "that verify rounds looked at",
    "draft_collective_bytes_total": "the same bytes, over every start and round",
    "peak_rss_mib": "largest sample of the sum of proportional set sizes (PSS) over "
    "the server's processes, every 2 s",
    "speedup": "ratio of the two medians, packed over dense",
}


def build_report(
    settings: Settings, runs: Sequence[ArmRun], hardware: dict[str, Any]
) -> dict[str, Any]:
    """The whole report. `speedup` is the ratio of median output throughputs at the
    largest concurrency, None unless both arms ran."""
    outputs, accepts = compare_outputs(runs), compare_accept_lengths(runs)
    speedups = {
        str(level): _speedup(runs, level)
        for level in settings.concurrency
        if len(settings.arms) == 2
    }
    report: dict[str, Any] = {
        "model": _model_name(settings),
        "tp": settings.tp,
        "num_steps": settings.num_steps,
        "vocab_size": settings.vocab_size,
        "dtype": settings.dtype,
        "arms": {arm: arm_figures(settings, runs, arm) for arm in settings.arms},
        "outputs_identical": outputs.identical,
        "accept_lengths_identical": accepts.identical,
        "requests_compared": outputs.requests,
        "requests_differing": outputs.differing,
        "speedup": speedups.get(str(settings.headline_concurrency)),
        "speedup_by_concurrency": speedups,
        "sglang_version": runs[0].sglang_version,
        "hardware": hardware,
    }
    report["checks"] = checks(settings, report)
    report["definitions"] = DEFINITIONS
    report["settings"] = plain(asdict(settings))
    report["runs"] = [_run_dict(run) for run in runs]
    return report


def arm_figures(settings: Settings, runs: Sequence[ArmRun], arm: str) -> dict[str, Any]:
    """Figures of one arm. Byte figures are those of the largest concurrency: per row
    of the call, per row of the draft head, per proposed token, and in total."""
    mine = [run for run in runs if run.arm == arm]
    phases = phases_of(runs, arm)
    headline = phases_of(runs, arm, settings.headline_concurrency)
    throughput = {
        str(level): Spread.of(
            phase.output_tok_per_s for phase in phases_of(runs, arm, level)
        ).to_dict()
        for level in settings.concurrency
    }
    figures = [phase.figures for phase in headline]
    total = sum(f.output_bytes for f in figures)
    return {
        "output_tok_per_s": throughput[str(settings.headline_concurrency)]["median"],
        "accept_length": mean_accept_length(phases),
        "draft_collective_bytes_per_token": _ratio(total, sum(f.rows for f in figures)),
        "draft_collectives_per_step": _ratio(
            sum(p.figures.collectives for p in phases),
            sum(p.figures.steps for p in phases),
        ),
        "peak_rss_mib": max(run.peak_pss_mib for run in mine),
        "request_errors": sum(len(phase.errors) for phase in phases),
        "draft_collective_bytes_per_real_row": _ratio(
            total, sum(f.head_rows for f in figures)
        ),
        "draft_collective_bytes_per_proposed_token": _ratio(
            total, sum(p.proposed_tokens for p in headline)
        ),
        "draft_collective_bytes_total": total,
        "draft_steps": sum(f.steps for f in figures),
        "ranks_agree": all(phase.figures.ranks_agree for phase in phases),
        "output_tok_per_s_by_concurrency": throughput,
        "server_start_s": Spread.of(run.start_s for run in mine).to_dict(),
        "draft_path": mine[0].draft_path,
    }


def checks(settings: Settings, report: dict[str, Any]) -> dict[str, bool]:
    """What has to hold whatever the machine's speed, by name."""
    arms = report["arms"]
    result = {
        "outputs_identical": report["outputs_identical"],
        "accept_lengths_identical": report["accept_lengths_identical"],
        "no_request_errors": all(a["request_errors"] == 0 for a in arms.values()),
        "ranks_agree": all(a["ranks_agree"] for a in arms.values()),
        "one_collective_per_draft_step": all(
            a["draft_collectives_per_step"] == (1.0 if settings.tp > 1 else 0.0)
            for a in arms.values()
        ),
    }
    if len(arms) == 2 and settings.tp > 1:
        dense, packed = (
            arms[arm]["draft_collective_bytes_per_token"] for arm in ("dense", "packed")
        )
        result["packed_gathers_less"] = bool(packed and dense and packed < dense)
    return result


def _speedup(runs: Sequence[ArmRun], level: int) -> float:
    dense, packed = (
        Spread.of(p.output_tok_per_s for p in phases_of(runs, arm, level))
        for arm in ("dense", "packed")
    )
    return speedup(dense, packed)


def _run_dict(run: ArmRun) -> dict[str, Any]:
    fields = {k: v for k, v in vars(run).items() if k != "phases"}
    return plain(fields) | {"phases": [_phase_dict(phase) for phase in run.phases]}


def _phase_dict(phase: Phase) -> dict[str, Any]:
    return {
        "concurrency": phase.concurrency,
        "round": phase.round,
        "seconds": phase.seconds,
        "output_tokens": phase.output_tokens,
        "output_tok_per_s": phase.output_tok_per_s,
        "proposed_tokens": phase.proposed_tokens,
        "errors": phase.errors,
        "draft": asdict(phase.figures),
        "collective_calls": phase.calls_by_scope,
        "completions": [asdict(completion) for completion in phase.completions],
    }


def _model_name(settings: Settings) -> str:
    path = settings.model_path
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
