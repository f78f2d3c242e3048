"""How to start SGLang's server on the CPU engine: environment and common flags.

The demo, the tests and the benchmarks all take them from here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

ENGINE_FOLDER = Path(__file__).resolve().parent


def server_env(
    tp: int,
    base: Mapping[str, str],
    *,
    python_path: Sequence[Path | str] = (),
    cores: Sequence[int] | None = None,
) -> dict[str, str]:
    """`base` plus what a CPU server with `tp` ranks needs.

    `python_path` goes first on `PYTHONPATH` (the fork tree, for instance), then this
    engine, then what `base` had. `cores` are the ids to run on; default all that this
    process may use.
    """
    if cores is None:
        cores = available_cores()
    folders = [str(folder) for folder in python_path] + [str(ENGINE_FOLDER)]
    folders += [folder for folder in [base.get("PYTHONPATH", "")] if folder]
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(folders),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": thread_binding(tp, cores),
        # A CUDA build of torch brings NCCL, which SGLang would try on CPU groups.
        "SGLANG_NCCL_SO_PATH": "/nonexistent",
        # Without it the first request waits half a minute for the compiler.
        "TORCHDYNAMO_DISABLE": "1",
    }


def default_server_args(tp: int = 1) -> list[str]:
    """Flags of every CPU server; model, port and speculation are the caller's.

    The pool is bounded because SGLang would size it from free memory, for each rank.
    """
    return [
        *("--device", "cpu"),
        *("--attention-backend", "intel_amx"),
        *("--tp", str(tp)),
        *("--dtype", "float32"),
        *("--max-total-tokens", "4096"),
        *("--max-running-requests", "8"),
        *("--context-length", "512"),
        *("--max-mamba-cache-size", "32"),
        "--disable-overlap-schedule",
        "--disable-cuda-graph",
        "--skip-server-warmup",
    ]


def available_cores() -> list[int]:
    """Ids of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def thread_binding(tp: int, cores: Sequence[int]) -> str:
    """`SGLANG_CPU_OMP_THREADS_BIND`: a list of core ids per rank, joined by `|`.

    Ranks get equal shares of `cores`; with more ranks than cores they take turns.
    ValueError when `tp` is below 1 or there is no core.
    """
    if tp < 1 or not cores:
        raise ValueError(f"need tp >= 1 and a core to run on, got {tp} and {cores}")
    share = max(1, len(cores) // tp)
    ranks = []
    for rank in range(tp):
        first = rank * share % len(cores)
        ranks.append(",".join(map(str, cores[first : first + share])))
    return "|".join(ranks)
