"""The servers that are compared, and how one is started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpu_engine_env import default_server_args
from scripts import serving
from scripts.demo.settings import FLAG
from scripts.serving import ServerCommand, cpu_engine
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
class Running(serving.Running):
    """A server that answers, and the folders its plugins write to."""

    @property
    def events(self) -> Path:
        """Where the recorder writes."""
        return self.folder / "events"

    @property
    def counters(self) -> Path:
        """Where the collective counter writes."""
        return self.counter_dir


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
    for stale in (folder / "events").glob("*"):
        stale.unlink()
    options = _options(arm, folder, tp=tp, speculation=speculation)
    with serving.launch(model or prepare_model(), folder, **options) as running:
        yield Running(running.server, folder)


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
    options = _options(arm, folder, tp=tp, speculation=speculation)
    path = model or prepare_model()
    return serving.server_command(path, folder, port=port, **options)


def _options(
    arm: Arm, folder: Path, *, tp: int, speculation: Sequence[str] | None
) -> dict[str, Any]:
    return dict(
        tp=tp,
        fork=arm.fork,
        plugins=[SUPPORT],
        env={"VPDRAFT_RECORDER_DIR": str(folder / "events"), **arm.env},
        args=[
            *default_server_args(tp),
            *("--chunked-prefill-size", str(CHUNK)),
            # A sampled request's first token comes from the server's generator.
            *("--random-seed", "7"),
            *(chain_args() if speculation is None else speculation),
            *arm.args,
        ],
    )


def draft_status(url: str) -> dict[str, Any] | None:
    """What `/server_info` says about the draft path; None when it says nothing."""
    info = get_json(f"{url}/server_info")
    return info["internal_states"][0].get("vocab_parallel_draft")


def status_lines(log: str) -> list[str]:
    """The log's lines about the draft path."""
    return [line for line in log.splitlines() if PACKED_LINE in line]
