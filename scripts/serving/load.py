"""What comparisons of servers have in common: a model, a load, and where they run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cpu_engine


@dataclass(frozen=True)
class Load:
    """Servers of one model after another, each with the same prompts.

    `prompt_tokens` and `output_tokens` are of a request; every request is sent once a
    round.
    """

    model_path: Path
    fork: Path
    out: Path
    tp: int
    num_steps: int
    rounds: int
    output_tokens: int
    prompt_tokens: int = 16
    seed: int = 7
    port: int | None = None
    ready_timeout_s: float = 300.0

    def engine_args(self, running: int, **options: Any) -> list[str]:
        """Arguments of the CPU engine for `running` requests in flight."""
        # Drafts of a step stand in the pool before they are verified.
        length = self.prompt_tokens + self.output_tokens + 2 * self.num_steps + 2
        return cpu_engine.engine_args(
            tp=self.tp,
            max_running_requests=running,
            max_total_tokens=max(4096, 2 * running * length),
            **options,
        )
