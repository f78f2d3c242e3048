"""What a measurement ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from scripts.serving.gpu import describe_gpus


def describe() -> dict[str, object]:
    """CPU model, usable cores, memory, operating system, and GPUs where there are any."""
    gpus = describe_gpus()
    return {
        **({"gpus": gpus} if gpus else {}),
        "cpu": cpu_model(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def cpu_model() -> str:
    """The model name the kernel reports, else the machine type."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
