"""`report.json`: every position, the policies, and what has to hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scripts.calibrate.measure import ArmRun, Prompt
from scripts.calibrate.pairs import Pairs
from scripts.calibrate.policy import policy_figures
from scripts.calibrate.positions import accept_length_figures, position_figures
from scripts.calibrate.settings import Settings
from scripts.calibrate.statistics import (
    MAX_TEMPERATURE,
    MIN_SAMPLES,
    MIN_TEMPERATURE,
    NUM_BINS,
    Fit,
)
from scripts.serving.plain import plain

DEFINITIONS = {
    "positions": "position i is the i-th drafted token of a chain; its outcomes are those "
    "of chains whose drafts before it were all taken; scored on the later half of the "
    "verifies, temperatures fitted on the earlier half",
    "predicted": "mean exact probability that the draft model gave to its token",
    "observed": "share of those tokens that the target took",
    "brier": "mean of (predicted - outcome)^2",
    "ece": f"expected calibration error over {NUM_BINS} bins of equal width: mean over "
    "outcomes of |mean predicted - share taken| of their bin",
    "nll": "mean negative log likelihood of the outcomes, nats",
    "temperature": "T of sigmoid(logit(p) / T) with the least negative log likelihood, "
    f"between {MIN_TEMPERATURE:g} and {MAX_TEMPERATURE:g}; 1 with fewer than "
    f"{MIN_SAMPLES} outcomes",
    "accept_length": "tokens a verify yields, bonus token included; expected: 1 + the sum "
    "of the chain's survival",
    "verified_tokens": "rows that the target ran in verifies (drafts + 1 each), of one "
    "round over all prompts; median of the rounds",
    "output_tok_per_s": "output tokens of a round over its wall time; median of the rounds",
    "policy": "without: adaptive steps by the accept length; with: by the calibrated draft "
    "confidence; fixed: always num_steps; none: no speculative decoding",
}


def build_report(
    pairs: Pairs,
    fits: list[Fit],
    *,
    settings: Settings | None = None,
    runs: Sequence[ArmRun] = (),
    prompts: Sequence[Prompt] = (),
    hardware: dict[str, Any],
    source: str,
) -> dict[str, Any]:
    """The whole report; `runs` is empty when only shards were read, and `policy` is then
    None. Position figures are those of the later half of `pairs`."""
    early, late = pairs.halves()
    report: dict[str, Any] = {
        "source": source,
        "samples": {"verifies": len(pairs), "fit": len(early), "report": len(late)},
        "bins": NUM_BINS,
        "positions": position_figures(late, fits),
        "accept_length": accept_length_figures(late, fits),
        "policy": policy_figures(runs, prompts),
        "hardware": hardware,
        "definitions": DEFINITIONS,
    }
    if settings is not None:
        report |= {
            "model": plain(settings.model_path),
            "tp": settings.tp if settings.server_args is None else None,
            "num_steps": settings.num_steps,
            "sglang_version": runs[0].sglang_version if runs else None,
            "settings": plain(asdict(settings)),
            "commands": {run.arm: " ".join(plain(run.command)) for run in runs},
            "servers": [
                {"arm": run.arm, "start_s": run.start_s, "server_info": run.state}
                for run in runs
            ],
        }
    report["checks"] = checks(report)
    return report


def checks(report: dict[str, Any]) -> dict[str, bool]:
    """What has to hold whatever the machine's speed, by name."""
    result = {"pairs_collected": report["samples"]["verifies"] > 0}
    policy = report["policy"]
    if policy is None:
        return result
    arms = [arm for arm in policy.values() if isinstance(arm, dict)]
    result["outputs_identical"] = policy["outputs_identical"]
    result["no_request_errors"] = all(arm["request_errors"] == 0 for arm in arms)
    if "with" in policy and "without" in policy:
        ours, theirs = (policy[arm]["verified_tokens"] for arm in ("with", "without"))
        result["fewer_verified_tokens"] = bool(ours and theirs and ours < theirs)
    return result
