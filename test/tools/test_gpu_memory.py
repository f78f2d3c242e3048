"""GPU facts through NVML, with a made-up NVML in its place."""

from __future__ import annotations

import sys
import types

import pytest

from scripts.serving.gpu import describe_gpus, used_memory_reader


def nvml(used: list[int], working: bool = True) -> types.ModuleType:
    module = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def init() -> None:
        if not working:
            raise NVMLError("no driver")

    def power(handle: int) -> int:
        raise NVMLError("not supported")

    module.NVMLError = NVMLError
    module.nvmlInit = init
    module.nvmlDeviceGetCount = lambda: len(used)
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetHandleByUUID = lambda uuid: int(uuid.removeprefix("GPU-"))
    module.nvmlDeviceGetName = lambda handle: f"GPU {handle}"
    module.nvmlSystemGetDriverVersion = lambda: "1.2"
    module.nvmlDeviceGetEnforcedPowerLimit = power
    module.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(
        used=used[handle], total=80 << 30
    )
    return module


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, 60), ("", 0), ("1", 20), ("2, 0", 40), ("GPU-2,GPU-1", 50)],
)
def test_visible_gpus_are_added_up(
    visible: str | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when GPUs of others count, or one of ours does not."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml([10, 20, 30]))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert used_memory_reader()() == expected


def test_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a GPU that hides its power limit ends the run."""
    monkeypatch.setitem(sys.modules, "pynvml", nvml([10]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (gpu,) = describe_gpus()
    assert gpu == {
        "name": "GPU 0",
        "memory_mib": 80 << 10,
        "power_limit_w": None,
        "driver": "1.2",
    }


@pytest.mark.parametrize("module", [None, nvml([], working=False)])
def test_without_nvml(module, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a host without a driver is a crash, or counts as 0 bytes in use."""
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert describe_gpus() == []
    with pytest.raises(ValueError, match="no NVML"):
        used_memory_reader()
