"""What the demo runs, and the server command lines that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.serving import cpu_engine
from scripts.serving.arms import ARMS, FLAG, flag_args

__all__ = ["ARMS", "FLAG", "ROOT", "Settings"]

ROOT = cpu_engine.ROOT


@dataclass(frozen=True)
class Settings:
    """One demo. `order` holds the arm of each server start."""

    model_path: Path
    fork: Path
    out: Path
    vocab_size: int
    dtype: str = "float32"
    tp: int = 4
    num_steps: int = 3
    order: Sequence[str] = ("dense", "packed", "packed", "dense")
    concurrency: Sequence[int] = (1, 8)
    requests: Sequence[int] = (4, 24)
    rounds: int = 3
    prompt_tokens: int = 16
    output_tokens: int = 32
    seed: int = 7
    port: int | None = None
    ready_timeout_s: float = 300.0

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
        most = max(self.concurrency)
        length = self.prompt_tokens + self.output_tokens + 2 * self.num_steps + 2
        engine = cpu_engine.engine_args(
            tp=self.tp,
            dtype=self.dtype,
            max_running_requests=most,
            max_total_tokens=max(4096, 2 * most * length),
        )
        chain = cpu_engine.chain_args(self.num_steps)
        return [*engine, *chain, *flag_args(arm)]
