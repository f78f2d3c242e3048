"""Adaptive steps by the draft's confidence in its chains."""

from __future__ import annotations

from typing import Dict, Optional

from sglang.srt.speculative.adaptive_spec_params import _load_adaptive_config

THRESHOLD_KEY = "confidence_threshold"
DEFAULT_THRESHOLD = 0.4


def read_thresholds(path: Optional[str]) -> Dict[int, float]:
    """Survival threshold of every batch-size entry of the adaptive configuration.

    An entry's ``confidence_threshold`` goes before the file's, the file's before the
    default.

    Raises:
        ValueError: a threshold is no number between 0 and 1; the message names it.
    """
    cfg, entries = _load_adaptive_config(path)
    merged = {size: {**cfg, **entry} for size, entry in entries.items()}
    return {size: _threshold(size, entry) for size, entry in merged.items()}


def _threshold(size: int, entry: dict) -> float:
    value = entry.get(THRESHOLD_KEY, DEFAULT_THRESHOLD)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        value = None
    if value is None or not 0.0 < value < 1.0:
        raise ValueError(
            f"--speculative-adaptive-config, BS {size}: {THRESHOLD_KEY} must be a number "
            f"between 0 and 1, got {entry[THRESHOLD_KEY]!r}."
        )
    return float(value)
