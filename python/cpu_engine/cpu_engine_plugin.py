"""SGLang plugin: what the CPU engine needs besides the ops of `sgl_kernel`.

SGLang finds it by the entry point in the dist-info folder beside this file and runs
`activate` in the launcher and in every scheduler process. It does nothing unless
`SGLANG_USE_CPU_ENGINE=1`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

FALLBACKS = "sglang.srt.arg_groups.attention_hook._attention_backend_platform_fallbacks"
RANK_START = "sglang.srt.distributed.bootstrap._init_cpu_threads_env"


def activate() -> None:
    """Register the hooks below with SGLang."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(FALLBACKS, keep_cpu_backend, HookType.AROUND)
    HookRegistry.register(RANK_START, start_rank, HookType.REPLACE)
    if not torch.cuda.is_available():
        make_cuda_calls_harmless()


def keep_cpu_backend(fallbacks: Callable[[Any], dict], view: Any) -> dict:
    """Keep `intel_amx` on CPUs without AMX.

    The stand-ins serve it there, and it is the only CPU backend with draft decoding.
    """
    if view.device == "cpu" and view.attention_backend == "intel_amx":
        return {}
    return fallbacks(view)


def start_rank(*, local_omp_cpuid: str | list[int] | None, **_: Any) -> None:
    """Prepare a rank's process before its model is built.

    Stock SGLang binds threads with a compiled op here, on hosts that have it, and sets
    up a shared-memory all-reduce beside. That stays off: ranks talk gloo.
    """
    from cpu_linear_attention import use_cpu_linear_attention

    bind_threads(parse_cores(local_omp_cpuid))
    use_cpu_linear_attention()


def bind_threads(cores: set[int]) -> None:
    """Run this process on `cores`, a thread for each; an empty set changes nothing.

    ValueError for a core that this process may not run on.
    """
    if not cores:
        return
    if hasattr(os, "sched_setaffinity"):
        allowed = os.sched_getaffinity(0)
        if not cores <= allowed:
            raise ValueError(
                f"SGLANG_CPU_OMP_THREADS_BIND: cores {sorted(cores - allowed)} are not "
                f"available here; choose from {sorted(allowed)}"
            )
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(len(cores))


def parse_cores(spec: str | list[int] | None) -> set[int]:
    """Core ids of "0-3,8" or of a list; ValueError for any other text."""
    if spec is None:
        return set()
    if not isinstance(spec, str):
        return {int(core) for core in spec}
    cores: set[int] = set()
    for piece in spec.split(","):
        first, _, last = piece.strip().partition("-")
        try:
            cores.update(range(int(first), int(last or first) + 1))
        except ValueError:
            raise ValueError(
                f"SGLANG_CPU_OMP_THREADS_BIND: cannot read {piece!r}; write core ids "
                f"and ranges per rank, as in 0-3,8|4-7"
            ) from None
    return cores


def make_cuda_calls_harmless() -> None:
    """Make calls that are made without a look at the device do nothing on a host
    without a GPU: two of `torch.cuda` by some models' `set_embed_and_head`, one of every
    tensor by the workers of block drafts.
    """
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.empty_cache = lambda: None
    torch.Tensor.record_stream = lambda tensor, stream: None
