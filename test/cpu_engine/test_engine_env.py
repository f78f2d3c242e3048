"""The environment of a CPU server, and the plugin that SGLang loads there."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace

import cpu_engine_env
import cpu_engine_plugin
import pytest


@pytest.mark.parametrize(
    "tp, cores, want",
    [
        (1, [0, 1], "0,1"),
        (2, [0, 1], "0|1"),
        (4, [0, 1], "0|1|0|1"),
        (3, [4, 5], "4|5|4"),
        (2, [0, 1, 2, 3, 4], "0,1|2,3"),
        (3, [2, 3, 6, 7, 8, 9], "2,3|6,7|8,9"),
    ],
)
def test_ranks_share_the_cores(tp: int, cores: list[int], want: str) -> None:
    """Red if a rank gets no core, or two ranks the same one while others idle."""
    assert cpu_engine_env.thread_binding(tp, cores) == want


@pytest.mark.parametrize("tp, cores", [(0, [1]), (2, [])])
def test_no_rank_or_no_core_is_an_error(tp: int, cores: list[int]) -> None:
    """Red if a nonsense binding reaches the server."""
    with pytest.raises(ValueError, match="tp >= 1"):
        cpu_engine_env.thread_binding(tp, cores)


def test_environment_keeps_the_base_and_orders_the_path() -> None:
    """Red if the fork does not come before the engine, or the base is changed."""
    base = {"HOME": "somewhere", "PYTHONPATH": "mine"}
    env = cpu_engine_env.server_env(2, base, python_path=["fork"], cores=[0, 1])
    folder = str(cpu_engine_env.ENGINE_FOLDER)
    assert env["PYTHONPATH"].split(os.pathsep) == ["fork", folder, "mine"]
    assert env["HOME"] == "somewhere"
    assert env["SGLANG_USE_CPU_ENGINE"] == "1"
    assert env["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"
    assert base == {"HOME": "somewhere", "PYTHONPATH": "mine"}


@pytest.mark.parametrize(
    "spec, want",
    [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), ([4, 5], {4, 5}), (None, set())],
)
def test_core_lists(spec: str | list[int] | None, want: set[int]) -> None:
    """Red if a range loses its last core."""
    assert cpu_engine_plugin.parse_cores(spec) == want


def test_a_core_list_that_is_none_names_the_variable() -> None:
    """Red if a typing mistake ends in a bare int() error."""
    with pytest.raises(ValueError, match="SGLANG_CPU_OMP_THREADS_BIND.*'x'"):
        cpu_engine_plugin.parse_cores("0,x")


def test_a_core_that_is_not_there_is_named() -> None:
    """Red if a wrong core id ends in a bare OSError, or is ignored."""
    missing = max(os.sched_getaffinity(0)) + 1
    with pytest.raises(ValueError, match=rf"cores \[{missing}\] are not available"):
        cpu_engine_plugin.bind_threads({missing})


BOUND = """
import os, torch, cpu_engine_plugin
core = min(os.sched_getaffinity(0))
cpu_engine_plugin.bind_threads({core})
print(os.sched_getaffinity(0) == {core}, torch.get_num_threads())
"""


def test_a_rank_runs_on_its_cores() -> None:
    """Red if ranks are left to run everywhere with a thread per core of the host."""
    done = subprocess.run(
        [sys.executable, "-c", BOUND], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["True", "1"], done.stderr[-2000:]


@pytest.mark.parametrize(
    "device, backend, kept",
    [("cpu", "intel_amx", True), ("cpu", "other", False), ("xpu", "intel_amx", False)],
)
def test_only_the_cpu_backend_is_kept(device: str, backend: str, kept: bool) -> None:
    """Red if other platforms' fallbacks are lost."""
    view = SimpleNamespace(device=device, attention_backend=backend)
    changed = {"attention_backend": "fallback"}
    got = cpu_engine_plugin.keep_cpu_backend(lambda _: changed, view)
    assert got == ({} if kept else changed)


def test_sglang_finds_the_plugin() -> None:
    """Red if the dist-info folder does not name the entry point."""
    (found,) = [
        entry
        for entry in entry_points(group="sglang.srt.plugins")
        if entry.name == "cpu_engine"
    ]
    assert found.load() is cpu_engine_plugin.activate


PROBE = """
import torch
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.arg_groups import attention_hook
from sglang.srt.distributed import bootstrap
from sglang.srt.plugins.hook_registry import HookRegistry
for target in ({fallbacks!r}, {threads!r}):
    print(target in HookRegistry._patched)
"""


@pytest.mark.parametrize("enabled", ["1", "0"])
def test_hooks_are_applied_only_on_the_cpu_engine(enabled: str) -> None:
    """Red if SGLang moves a hooked function, or a GPU host gets the hooks too."""
    code = PROBE.format(
        fallbacks=cpu_engine_plugin.FALLBACKS, threads=cpu_engine_plugin.RANK_START
    )
    env = {**os.environ, "SGLANG_USE_CPU_ENGINE": enabled}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    want = ["True" if enabled == "1" else "False"] * 2
    assert done.stdout.split()[-2:] == want
