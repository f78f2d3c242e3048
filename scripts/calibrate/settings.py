"""What a calibration runs, and the server command lines that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.serving import cpu_engine
from scripts.serving.arms import FLAG
from scripts.serving.load import Load

ROOT = cpu_engine.ROOT
COLLECT_VARIABLE = "SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH"
CONFIDENCE = "--speculative-draft-confidence"
TEMPERATURES = "--speculative-draft-confidence-temperatures"
POLICY = "--speculative-adaptive-policy"

# fixed: `num_steps` drafts every time, and collects. none: no speculative decoding.
# without, with: adaptive steps by the accept length, and by the confidence.
ARMS = ("fixed", "none", "without", "with")
DEFAULT_ORDER = ("fixed", "none", "without", "with")

_FROM_ONE = (
    *("tp", "num_steps", "initial_steps", "pairs_requests", "pairs_concurrency"),
    *("requests", "concurrency", "rounds", "prompt_tokens", "output_tokens"),
)


@dataclass(frozen=True, kw_only=True)
class Settings(Load):
    """One calibration. `order` holds the arm of each server start; `pairs_requests` are
    sent once, for the fit, and `requests` to every arm, for the policies.
    `server_args` take the place of the CPU engine's arguments and environment."""

    tp: int = 2
    num_steps: int = 7
    initial_steps: int = 3
    order: Sequence[str] = DEFAULT_ORDER
    pairs_requests: int = 48
    pairs_concurrency: int = 4
    requests: int = 16
    concurrency: int = 1
    rounds: int = 2
    output_tokens: int = 64
    adaptive_config: Path | None = None
    server_args: Sequence[str] | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.order) - set(ARMS))
        if unknown:
            raise ValueError(f"--order: {unknown} is not one of {list(ARMS)}")
        if self.order[:1] != ("fixed",):
            raise ValueError("--order: starts with fixed, whose pairs the others need")
        if self.order.count("fixed") > 1:
            raise ValueError("--order: fixed once, a second would mix its pairs in")
        for name in _FROM_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"--{name.replace('_', '-')}: from 1")

    @property
    def shard_stem(self) -> Path:
        """Where the collecting server writes."""
        return self.out / "pairs" / "fixed"

    @property
    def shards(self) -> str:
        """Glob pattern of what it has written."""
        return f"{self.shard_stem}.*.pt"

    @property
    def most_running(self) -> int:
        """Requests that are in flight at once, of any phase."""
        return max(self.concurrency, self.pairs_concurrency)

    @property
    def temperatures_path(self) -> Path:
        return self.out / "temperatures.json"

    def arm_args(self, arm: str) -> list[str]:
        """Arguments after model path, host and port."""
        return [*self._engine_args(), *self._draft_args(arm)]

    def _engine_args(self) -> list[str]:
        if self.server_args is not None:
            # A warm-up of the server's own would be among the pairs.
            return [*self.server_args, "--skip-server-warmup"]
        args = self.engine_args(self.most_running)
        # Adaptive steps capture graphs otherwise, which this engine has none of.
        return [*args, "--disable-cuda-graph"]

    def _draft_args(self, arm: str) -> list[str]:
        if arm == "none":
            return []
        steps = self.num_steps if arm == "fixed" else self.initial_steps
        args = [*cpu_engine.chain_args(steps), FLAG, "on", CONFIDENCE]
        if arm == "fixed":
            return args
        args.append("--speculative-adaptive")
        if self.adaptive_config is not None:
            args += ["--speculative-adaptive-config", str(self.adaptive_config)]
        if arm == "with":
            args += [POLICY, "confidence", TEMPERATURES, str(self.temperatures_path)]
        return args

    def arm_env(self, arm: str) -> dict[str, str]:
        """Environment on top of the inherited one."""
        env = {} if self.server_args is not None else cpu_engine.environment(self.tp)
        if arm == "fixed":
            env[COLLECT_VARIABLE] = str(self.shard_stem)
        return env
