"""How a server is launched on SGLang's CPU engine, from this repository's fork."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FORK = ROOT / "build" / "fork"
CPU_ENGINE = ROOT / "python" / "cpu_engine"
COLLECTIVE_COUNTER = ROOT / "python" / "collective_counter"


def python_path(fork: Path | None = FORK) -> list[Path]:
    """Folders in front of `PYTHONPATH`. The fork hides the installed package; None
    serves the installed package as it is."""
    return [*([fork] if fork is not None else []), CPU_ENGINE, COLLECTIVE_COUNTER]


def environment(tp: int, counter_dir: Path | None = None) -> dict[str, str]:
    """Environment of a server of `tp` ranks; the counters are off without a folder."""
    env = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": core_binding(tp),
        # A CUDA build of torch brings NCCL, which CPU groups must not try.
        "SGLANG_NCCL_SO_PATH": "/nonexistent",
        "TORCHDYNAMO_DISABLE": "1",
        "VPDRAFT_COUNTER_DIR": "",
    }
    if counter_dir is not None:
        env["VPDRAFT_COUNTER_DIR"] = str(counter_dir)
    return env


def engine_args(
    *,
    tp: int,
    dtype: str = "float32",
    max_running_requests: int = 8,
    max_total_tokens: int = 4096,
    context_length: int = 512,
) -> list[str]:
    """Arguments of any server on the CPU engine. The prefix cache is off, so that a
    prompt that is sent again does all its work again."""
    return [
        *("--device", "cpu"),
        *("--dtype", dtype),
        *("--tp", str(tp)),
        *("--attention-backend", "intel_amx"),
        *("--context-length", str(context_length)),
        *("--max-total-tokens", str(max_total_tokens)),
        *("--max-running-requests", str(max_running_requests)),
        "--disable-radix-cache",
        "--disable-overlap-schedule",
        "--skip-server-warmup",
    ]


def chain_args(num_steps: int, algorithm: str = "NEXTN") -> list[str]:
    """Arguments of speculative decoding with a chain of `num_steps` drafts."""
    return [
        *("--speculative-algorithm", algorithm),
        *("--speculative-num-steps", str(num_steps)),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(num_steps + 1)),
    ]


def core_binding(tp: int, cores: Sequence[int] | None = None) -> str:
    """Cores per rank in SGLang's form, `0,1|2,3`; ranks share cores when there are
    fewer cores than ranks."""
    ids = sorted(cores if cores is not None else os.sched_getaffinity(0))
    share = max(1, len(ids) // tp)
    ranks = []
    for rank in range(tp):
        first = rank * share % len(ids)
        ranks.append(",".join(map(str, ids[first : first + share])))
    return "|".join(ranks)
