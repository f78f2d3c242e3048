"""One clear error for bad input, and nothing left running."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts.serving.cpu_engine import ROOT


def run_demo(*args: str) -> subprocess.CompletedProcess:
    """The demo as a person runs it, on a small vocabulary."""
    command = [sys.executable, "-m", "scripts.demo", "--vocab-size", "1003", *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def servers_running() -> list[int]:
    """Pids of this process's own servers: below it, or orphaned with our marker."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "sglang.launch_server" in (process.info["cmdline"] or []):
            try:
                if process.environ().get("VPDRAFT_TEST_PID") == str(os.getpid()):
                    found.append(process.pid)
            except psutil.Error:
                continue
    return found


@pytest.fixture(autouse=True)
def nothing_left_running(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VPDRAFT_TEST_PID", str(os.getpid()))
    yield
    assert servers_running() == []


def assert_one_error(result: subprocess.CompletedProcess, *parts: str) -> None:
    lines = result.stderr.strip().splitlines()
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert all(part in lines[-1] for part in parts), result.stderr


def test_demo_missing_model(tmp_path: Path) -> None:
    """Red when a missing model reaches the server."""
    result = run_demo("--model-path", str(tmp_path / "none"), "--out", str(tmp_path))
    assert_one_error(result, "--model-path", "config.json")


def test_demo_port_in_use(tmp_path: Path) -> None:
    """Red when the demo starts a server on a port that is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run_demo("--port", port, "--out", str(tmp_path))
    assert_one_error(result, "--port", port)


def test_demo_tp_does_not_divide_heads(tmp_path: Path) -> None:
    """Red when head counts are first looked at by the ranks."""
    result = run_demo("--tp", "3", "--out", str(tmp_path))
    assert_one_error(result, "--tp 3", "8 attention heads")


def test_demo_unknown_arm(tmp_path: Path) -> None:
    """Red when an unknown arm is accepted."""
    result = run_demo("--order", "dense,fast", "--out", str(tmp_path))
    assert_one_error(result, "--order", "'fast'")
