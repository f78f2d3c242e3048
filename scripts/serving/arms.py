"""The two arms of every comparison, and the one flag in which they differ."""

from __future__ import annotations

ARMS = ("dense", "packed")
FLAG = "--speculative-vocab-parallel-draft"
FLAG_VALUE = {"dense": "off", "packed": "on"}


def flag_args(arm: str) -> list[str]:
    """The arguments that make a server this arm's."""
    return [FLAG, FLAG_VALUE[arm]]
