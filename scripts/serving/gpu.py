"""GPUs as NVML sees them; on a host without NVML there are none."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any


def _nvml() -> ModuleType | None:
    """An initialised NVML, or None without the package or the driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _handles(nvml: ModuleType) -> list[Any]:
    """The devices that `CUDA_VISIBLE_DEVICES` names, by index or UUID; else all."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        count = nvml.nvmlDeviceGetCount()
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [
        (
            nvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdigit()
            else nvml.nvmlDeviceGetHandleByUUID(name)
        )
        for name in names
    ]


def describe_gpus() -> list[dict[str, Any]]:
    """Name, memory, power limit and driver of every visible GPU; empty without."""
    nvml = _nvml()
    if nvml is None:
        return []
    driver = nvml.nvmlSystemGetDriverVersion()
    return [
        {
            "name": nvml.nvmlDeviceGetName(handle),
            "memory_mib": nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20,
            "power_limit_w": _power_limit(nvml, handle),
            "driver": driver,
        }
        for handle in _handles(nvml)
    ]


def used_memory_reader() -> Callable[[], int]:
    """A function that returns the bytes in use on all visible GPUs together.

    ValueError without NVML.
    """
    nvml = _nvml()
    if nvml is None:
        raise ValueError("no NVML here (driver or nvidia-ml-py missing): no GPU memory")
    handles = _handles(nvml)
    return lambda: sum(nvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles)


def _power_limit(nvml: ModuleType, handle: Any) -> float | None:
    try:
        return nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    except nvml.NVMLError:
        return None
