"""How a server is launched on SGLang's CPU engine, from this repository's fork.

What the engine itself needs is said once, in `python/cpu_engine`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FORK = Path(os.environ.get("VPDRAFT_FORK") or ROOT / "build" / "fork")
CPU_ENGINE = ROOT / "python" / "cpu_engine"
# Last, so that it hides no kernel library of the host.
sys.path.append(str(CPU_ENGINE))

from cpu_engine_env import server_env  # noqa: E402

COLLECTIVE_COUNTER = ROOT / "python" / "collective_counter"


def python_path(fork: Path | None = FORK) -> list[Path]:
    """Folders in front of `PYTHONPATH`. The fork hides the installed package; None
    serves the installed package as it is."""
    return [*([fork] if fork is not None else []), CPU_ENGINE, COLLECTIVE_COUNTER]


def environment(tp: int, counter_dir: Path | None = None) -> dict[str, str]:
    """Environment of a server of `tp` ranks; the counters are off without a folder."""
    env = server_env(tp, {})
    # `ServerCommand.python_path` sets it, with more folders.
    del env["PYTHONPATH"]
    return env | {"VPDRAFT_COUNTER_DIR": str(counter_dir or "")}


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
