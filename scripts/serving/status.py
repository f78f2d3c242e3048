"""What a server says about itself, and what to say while it starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Say = Callable[[str], None]
_TICK_S = 15.0


def find_field(info: Any, name: str) -> Any:
    """The first field of this name in `/server_info`, wherever the scheduler's state
    sits in it; None when there is none."""
    if isinstance(info, dict):
        if name in info:
            return info[name]
        info = list(info.values())
    if isinstance(info, list):
        found = (find_field(item, name) for item in info)
        return next((item for item in found if item is not None), None)
    return None


def find_draft_path(info: Any) -> Any:
    """What `/server_info` says about the draft path; None when it says nothing."""
    return find_field(info, "vocab_parallel_draft")


class Ticker:
    """Says every few seconds that the server is still starting."""

    def __init__(self, label: str, say: Say) -> None:
        self._label, self._say, self._next = label, say, _TICK_S

    def __call__(self, elapsed_s: float) -> None:
        if elapsed_s >= self._next:
            self._say(f"{self._label} still starting, {elapsed_s:.0f} s")
            self._next += _TICK_S
