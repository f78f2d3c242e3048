"""One server start: warm-up, then the same prompts round after round."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.calibrate.pairs import Pairs, read_pairs
from scripts.calibrate.settings import Settings
from scripts.serving import (
    Completion,
    Server,
    ServerCommand,
    complete_all,
    cpu_engine,
    free_port,
)
from scripts.serving.client import RequestFailed, get_json
from scripts.serving.status import Say, Ticker

_WARM_UP_TOKENS = 4
# A scheduler writes what it has collected as soon as it has nothing to do.
_SHARDS_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Prompt:
    """What is sent, and its class where the model has classes."""

    content: Sequence[int] | str
    kind: str | None = None


@dataclass(frozen=True)
class Round:
    """All prompts once."""

    seconds: float
    completions: list[Completion]

    @property
    def output_tok_per_s(self) -> float:
        """Output tokens of all requests over the round's wall time."""
        return sum(len(c.output_ids) for c in self.completions) / self.seconds

    @property
    def errors(self) -> list[str]:
        return [c.error for c in self.completions if c.error is not None]

    @property
    def verified_tokens(self) -> int | None:
        """Rows that the target ran in verifies: each one's drafts and one more."""
        counts = [c.verified_tokens for c in self.completions if not c.error]
        return sum(counts) if counts and None not in counts else None


@dataclass(frozen=True)
class ArmRun:
    """Everything measured during one server start. `pairs` are those of the collecting
    arm's own requests, None for the others."""

    arm: str
    start_s: float
    command: list[str]
    sglang_version: str
    state: dict[str, Any]
    rounds: list[Round]
    pairs: Pairs | None


def run_arm(
    settings: Settings,
    arm: str,
    label: str,
    prompts: Sequence[Prompt],
    pairs_prompts: Sequence[Prompt],
    say: Say,
) -> ArmRun:
    """Start the arm's server, send every round, stop it.

    Raises ServerError when it does not start or dies, ValueError for bad input.
    """
    own_engine = settings.server_args is None
    command = ServerCommand(
        model_path=settings.model_path,
        args=settings.arm_args(arm),
        port=settings.port or free_port(),
        log_path=settings.out / f"server-{label}.log",
        env=settings.arm_env(arm),
        python_path=(
            cpu_engine.python_path(settings.fork)
            if own_engine
            else [settings.fork, *_inherited_path()]
        ),
    )
    say(f"[{label}] starting the server, log in {command.log_path}")
    contents = [prompt.content for prompt in prompts]
    pairs, server = None, Server(command, settings.ready_timeout_s)
    try:
        server.start()
        server.wait_ready(Ticker(f"[{label}]", say))
        say(f"[{label}] ready after {server.start_s:.0f} s")
        warm_up = complete_all(server.url, contents[:1], _WARM_UP_TOKENS, 1)
        if arm == "fixed":
            pairs = _collect(server, settings, pairs_prompts, warm_up, say)
        rounds = [
            _run_round(server, settings, contents, say) for _ in range(settings.rounds)
        ]
        info = get_json(f"{server.url}/server_info")
    finally:
        server.stop()
    return ArmRun(
        arm=arm,
        start_s=server.start_s,
        command=command.argv()[1:],
        sglang_version=info["version"],
        state=_speculative_state(info),
        rounds=rounds,
        pairs=pairs,
    )


def _inherited_path() -> list[Path]:
    """What a server of the user's own had on its path before the fork."""
    return [Path(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]


def _run_round(
    server: Server, settings: Settings, contents: Sequence[Any], say: Say
) -> Round:
    start = time.perf_counter()
    completions = complete_all(
        server.url, contents, settings.output_tokens, settings.concurrency
    )
    done = Round(time.perf_counter() - start, completions)
    server.check_alive()
    say(
        f"    {len(contents)} requests: {done.output_tok_per_s:.1f} output tok/s, "
        f"{done.verified_tokens} verified tokens, {len(done.errors)} errors"
    )
    return done


def _collect(
    server: Server,
    settings: Settings,
    prompts: Sequence[Prompt],
    warm_up: Sequence[Completion],
    say: Say,
) -> Pairs:
    """Send the fit's own requests, once each, and read what the server wrote of them.

    The rounds that follow send prompts again and again: their pairs, copies of one
    another, are left alone. RequestFailed when a request fails or a verify is missing.
    """
    contents = [prompt.content for prompt in prompts]
    completions = complete_all(
        server.url, contents, settings.output_tokens, settings.pairs_concurrency
    )
    server.check_alive()
    for completion in [*warm_up, *completions]:
        if completion.error is not None:
            raise RequestFailed(completion.error)
    verifies = sum(c.verify_rounds or 0 for c in [*warm_up, *completions])
    pairs = settled_pairs(settings, verifies)
    say(f"    {len(contents)} requests for the fit: {len(pairs)} verifies collected")
    return pairs


def settled_pairs(settings: Settings, verifies: int) -> Pairs:
    """The server's shards once they hold `verifies` rows; RequestFailed if never."""
    deadline = time.monotonic() + _SHARDS_TIMEOUT_S
    while True:
        try:
            pairs = read_pairs(settings.shards, settings.num_steps)
            if len(pairs) == verifies:
                return pairs
            state = f"{len(pairs)} rows"
        except ValueError as error:  # none yet, or one that is being written
            state = str(error)
        if time.monotonic() > deadline:
            raise RequestFailed(
                f"the server answered with {verifies} verifies; {settings.shards}: {state}"
            )
        time.sleep(0.2)


def _speculative_state(info: dict[str, Any]) -> dict[str, Any]:
    """What the scheduler says of speculative decoding over its life."""
    state = info["internal_states"][0]
    return {
        name: value for name, value in state.items() if name.startswith("avg_spec_")
    }
