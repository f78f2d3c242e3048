"""The servers that are compared, and how one is started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpu_engine_env import default_server_args, server_env
from scripts.demo.settings import FLAG
from scripts.serving import Server, ServerCommand, cpu_engine, free_port
from scripts.serving.client import get_json
from scripts.small_model.folder import write_model
from scripts.small_model.spec import ModelSpec

SUPPORT = Path(__file__).resolve().parents[1]
MODELS = cpu_engine.ROOT / "build" / "models"
# Two shards of 512 columns: 512 real ones on rank 0, 491 on rank 1.
SPEC = ModelSpec(vocab_size=1003)
TP = 2
NUM_STEPS = 3
CONTEXT = 512
CHUNK = 128
ON = (FLAG, "on")
PACKED_LINE = "Vocab-parallel draft ("


@dataclass(frozen=True)
class Arm:
    """A SGLang (the fork, or None for the installed one) with arguments and environment
    variables of its own."""

    name: str
    fork: Path | None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


# The dense arm does not name the flag: its default is part of what is tested.
ARMS = {
    "stock": Arm("stock", None),
    "dense": Arm("dense", cpu_engine.FORK),
    "packed": Arm("packed", cpu_engine.FORK, ON),
}


@dataclass(frozen=True)
class Running:
    """A server that answers, and the folders its plugins write to."""

    server: Server
    events: Path
    counters: Path

    @property
    def url(self) -> str:
        """Address without a path."""
        return self.server.url


def prepare_model(spec: ModelSpec = SPEC) -> Path:
    """The folder of a small model under `build/models`, made when missing."""
    tied = "-tied" if spec.tie_word_embeddings else ""
    heads = f"{spec.num_heads}x{spec.num_kv_heads}"
    return write_model(spec, MODELS / f"e2e-{spec.vocab_size}-{heads}{tied}")


def chain_args() -> list[str]:
    """MTP with a chain of `NUM_STEPS` drafts."""
    return cpu_engine.chain_args(NUM_STEPS)


def tree_args(topk: int, num_draft_tokens: int = 8) -> list[str]:
    """MTP with a tree of `NUM_STEPS` levels."""
    return [
        *("--speculative-algorithm", "NEXTN"),
        *("--speculative-num-steps", str(NUM_STEPS)),
        *("--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(num_draft_tokens)),
    ]


@contextmanager
def launch(
    arm: Arm,
    folder: Path,
    *,
    model: Path | None = None,
    tp: int = TP,
    speculation: Sequence[str] | None = None,
) -> Iterator[Running]:
    """A running server; its log, events and counters go to `folder`.

    `speculation` takes the place of `chain_args()`. Raises ServerError when it does
    not come up.
    """
    events, counters = folder / "events", folder / "counters"
    for stale in [*events.glob("*"), *counters.glob("*")]:
        stale.unlink()
    command = server_command(arm, folder, model=model, tp=tp, speculation=speculation)
    with Server(command) as server:
        yield Running(server, events, counters)


def server_command(
    arm: Arm,
    folder: Path,
    *,
    model: Path | None = None,
    tp: int = TP,
    speculation: Sequence[str] | None = None,
    port: int | None = None,
) -> ServerCommand:
    """The command line and environment that `launch` starts."""
    extra = [SUPPORT, cpu_engine.COLLECTIVE_COUNTER]
    python_path = [*([arm.fork] if arm.fork else []), *extra]
    env = server_env(tp, {"PATH": os.environ["PATH"]}, python_path=python_path)
    env["VPDRAFT_COUNTER_DIR"] = str(folder / "counters")
    env["VPDRAFT_RECORDER_DIR"] = str(folder / "events")
    env |= arm.env
    return ServerCommand(
        model_path=model or prepare_model(),
        args=[
            *default_server_args(tp),
            *("--chunked-prefill-size", str(CHUNK)),
            # A sampled request's first token comes from the server's generator.
            *("--random-seed", "7"),
            *(chain_args() if speculation is None else speculation),
            *arm.args,
        ],
        port=port or free_port(),
        log_path=folder / "server.log",
        env=env,
    )


def draft_status(url: str) -> dict[str, Any] | None:
    """What `/server_info` says about the draft path; None when it says nothing."""
    info = get_json(f"{url}/server_info")
    return info["internal_states"][0].get("vocab_parallel_draft")


def status_lines(log: str) -> list[str]:
    """The log's lines about the draft path."""
    return [line for line in log.splitlines() if PACKED_LINE in line]
