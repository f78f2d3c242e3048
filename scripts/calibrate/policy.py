"""The arms of the policies against one another; no input or output."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from scripts.calibrate.measure import ArmRun, Prompt, Round
from scripts.serving.spread import Spread


def policy_figures(
    runs: Sequence[ArmRun], prompts: Sequence[Prompt]
) -> dict[str, Any] | None:
    """Figures of each arm, and whether all of them gave the same tokens.

    `verified_tokens` is that of one round (the median), `output_tok_per_s` the median of
    all rounds of all starts. None when only the pairs were collected.
    """
    arms = list(dict.fromkeys(run.arm for run in runs))
    if not arms:
        return None
    figures: dict[str, Any] = {arm: _arm(runs, prompts, arm) for arm in arms}
    compared, differing = compare_outputs(runs)
    figures["outputs_identical"] = compared > 0 and not differing
    figures["requests_compared"] = compared
    figures["requests_differing"] = differing
    return figures


def compare_outputs(runs: Sequence[ArmRun]) -> tuple[int, list[int]]:
    """How many prompts were compared over all arms and rounds, and the indices of those
    whose tokens are not the same everywhere. A failed request differs."""
    seen: dict[int, set] = {}
    for round_ in (round_ for run in runs for round_ in run.rounds):
        for index, completion in enumerate(round_.completions):
            answer = None if completion.error else tuple(completion.output_ids)
            seen.setdefault(index, set()).add(answer)
    differing = [
        i for i, answers in seen.items() if len(answers) > 1 or None in answers
    ]
    return len(seen), sorted(differing)


def _arm(runs: Sequence[ArmRun], prompts: Sequence[Prompt], arm: str) -> dict[str, Any]:
    rounds = [round_ for run in runs if run.arm == arm for round_ in run.rounds]
    verified = [r.verified_tokens for r in rounds if r.verified_tokens is not None]
    speed = Spread.of(round_.output_tok_per_s for round_ in rounds)
    spread = Spread.of(verified) if verified else None
    return {
        "verified_tokens": spread.median if spread else None,
        "verified_tokens_by_round": verified,
        "verify_rounds": sum(c.verify_rounds or 0 for c in rounds[0].completions),
        "output_tok_per_s": speed.median,
        "output_tok_per_s_spread": speed.to_dict(),
        "output_tokens": sum(len(c.output_ids) for c in rounds[0].completions),
        "request_errors": sum(len(round_.errors) for round_ in rounds),
        "classes": {
            kind: _class(rounds, prompts, kind)
            for kind in dict.fromkeys(p.kind for p in prompts if p.kind)
        },
    }


def _class(
    rounds: Sequence[Round], prompts: Sequence[Prompt], kind: str
) -> dict[str, float | None]:
    """Means over the requests of one class: what was observed, and what was predicted."""
    mine = [
        completion
        for round_ in rounds
        for completion, prompt in zip(round_.completions, prompts, strict=True)
        if prompt.kind == kind and completion.error is None
    ]
    names = ("accept_length", "expected_accept_length", "draft_confidence")
    return {name: _mean([getattr(c, name) for c in mine]) for name in names}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
