"""What the demo runs, and the server command lines that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.serving import cpu_engine
from scripts.serving.arms import ARMS, FLAG, flag_args
from scripts.serving.load import Load

__all__ = ["ARMS", "FLAG", "ROOT", "Settings"]

ROOT = cpu_engine.ROOT


@dataclass(frozen=True, kw_only=True)
class Settings(Load):
    """One demo. `order` holds the arm of each server start."""

    vocab_size: int
    dtype: str = "float32"
    tp: int = 4
    num_steps: int = 3
    order: Sequence[str] = ("dense", "packed", "packed", "dense")
    concurrency: Sequence[int] = (1, 8)
    requests: Sequence[int] = (4, 24)
    rounds: int = 3
    output_tokens: int = 32

    def __post_init__(self) -> None:
        unknown = sorted(set(self.order) - set(ARMS))
        if unknown or not self.order:
            raise ValueError(f"--order: {unknown} is not one of {list(ARMS)}")
        if len(self.concurrency) != len(self.requests):
            raise ValueError("one number of requests for each concurrency")
        if min(self.tp, self.num_steps, self.rounds, self.output_tokens) < 1:
            raise ValueError("--tp, --num-steps, --rounds and --output-tokens: from 1")

    @property
    def arms(self) -> list[str]:
        """The arms that run, dense first."""
        return [arm for arm in ARMS if arm in self.order]

    @property
    def headline_concurrency(self) -> int:
        """The concurrency whose throughput is the report's headline."""
        return max(self.concurrency)

    def server_args(self, arm: str) -> list[str]:
        """Arguments after model path, host and port; arms differ in one value."""
        engine = self.engine_args(max(self.concurrency), dtype=self.dtype)
        chain = cpu_engine.chain_args(self.num_steps)
        return [*engine, *chain, *flag_args(arm)]
