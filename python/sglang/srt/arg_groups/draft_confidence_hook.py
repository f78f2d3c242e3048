"""Checks of the draft-confidence arguments, before a model is loaded."""

from __future__ import annotations

from typing import Any, Optional

import torch

from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.speculative.draft_confidence import TEMPERATURES_FLAG, load_temperatures

CONFIDENCE_FLAG = "--speculative-draft-confidence"
POLICY_FLAG = "--speculative-adaptive-policy"
CHAIN_ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE")
"""Resolved algorithms whose drafts are chains of one worker; NEXTN is EAGLE here."""


def handle_draft_confidence(server_args: Any) -> None:
    """Refuse combinations that cannot mean anything; the policy turns collection on.

    To be called after the algorithm, the steps and the adaptive candidates are settled.

    Raises:
        ValueError: names the argument and what to do.
    """
    cfg = resolving_view(server_args)
    confidence_policy = cfg.speculative_adaptive_policy == "confidence"
    # Resolution may turn adaptive steps off with a warning of its own.
    if confidence_policy and not server_args.speculative_adaptive:
        raise ValueError(
            f"{POLICY_FLAG} confidence chooses adaptive steps: add "
            f"--speculative-adaptive, or leave {POLICY_FLAG} out."
        )
    if cfg.speculative_draft_confidence and cfg.speculative_algorithm is None:
        raise ValueError(
            f"{CONFIDENCE_FLAG} reports on drafted tokens: set --speculative-algorithm, "
            f"or leave {CONFIDENCE_FLAG} out."
        )
    if confidence_policy and cfg.speculative_adaptive:
        from sglang.srt.speculative.adaptive_confidence import read_thresholds

        read_thresholds(cfg.speculative_adaptive_config)
        declare_resolution(
            server_args, "handle_draft_confidence", speculative_draft_confidence=True
        )
    if cfg.speculative_draft_confidence_temperatures is not None:
        _check_temperatures(cfg)


def _check_temperatures(cfg: Any) -> None:
    if not cfg.speculative_draft_confidence:
        raise ValueError(
            f"{TEMPERATURES_FLAG} scales collected probabilities: add {CONFIDENCE_FLAG}, "
            f"or leave {TEMPERATURES_FLAG} out."
        )
    if cfg.speculative_algorithm not in CHAIN_ALGORITHMS:
        raise ValueError(
            f"{TEMPERATURES_FLAG} is for EAGLE, EAGLE3, NEXTN and STANDALONE, not "
            f"{cfg.speculative_algorithm}; DSPARK has "
            "--speculative-dspark-confidence-sts-path."
        )
    server_temperatures(cfg)


def server_temperatures(cfg: Any) -> Optional[torch.Tensor]:
    """Temperatures of every position that the server may draft, FP32 ``[positions]``, if
    it was given any.

    ``cfg``: the ``spec`` arguments, settled or resolving.
    """
    path = cfg.speculative_draft_confidence_temperatures
    return None if path is None else load_temperatures(path, longest_chain(cfg))


def longest_chain(cfg: Any) -> int:
    """Drafted positions of the longest chain that a server may draft.

    ``cfg``: the ``spec`` arguments, settled or resolving.
    """
    if not cfg.speculative_adaptive:
        return cfg.speculative_num_steps
    from sglang.srt.speculative.adaptive_spec_params import (
        resolve_candidate_steps_from_config,
    )

    return max(resolve_candidate_steps_from_config(cfg.speculative_adaptive_config))
