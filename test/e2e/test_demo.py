"""The demo as a command: its report, and how it ends when it is interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from scripts.serving.cpu_engine import ROOT
from scripts.serving.processes import session_members

VOCAB = 1003
TP = 2
PACKED_BYTES = TP * 3 * 4
START_TIMEOUT_S = 120.0


def demo(out: Path, *args: str) -> list[str]:
    sizes = ["--vocab-size", str(VOCAB), "--tp", str(TP)]
    load = ["--concurrency", "1,4", "--requests", "2,4", "--rounds", "1"]
    command = [sys.executable, "-m", "scripts.demo", *sizes, *load]
    return [*command, "--out", str(out), *args]


def test_report(tmp_path: Path) -> None:
    """Red when an arm is not what its name says, when outputs differ, or when a field
    that the design promises is missing from the report."""
    args = demo(tmp_path, "--order", "dense,packed")
    result = subprocess.run(args, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert all(report["checks"].values())
    assert report["outputs_identical"] is True
    assert report["tp"] == TP and report["vocab_size"] == VOCAB
    assert report["num_steps"] == 3 and report["speedup"] > 0
    dense, packed = report["arms"]["dense"], report["arms"]["packed"]
    assert packed["draft_collective_bytes_per_token"] == PACKED_BYTES
    assert packed["draft_collective_bytes_per_real_row"] >= PACKED_BYTES
    # The gathered rows hold each shard's padding too.
    assert dense["draft_collective_bytes_per_token"] >= VOCAB * 4
    for arm in (dense, packed):
        assert arm["draft_collectives_per_step"] == 1
        assert arm["request_errors"] == 0
        assert arm["peak_rss_mib"] > 0
        assert 1.5 <= arm["accept_length"] <= 3.5
        steps = sum(
            phase["draft"]["steps"] for run in report["runs"] for phase in run["phases"]
        )
        assert steps > 0
    for chart in ("throughput.png", "bytes.png"):
        assert (tmp_path / chart).read_bytes().startswith(b"\x89PNG")


def wait_for_ranks(process: subprocess.Popen) -> int:
    """Session of the demo's server once it has rank processes."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        for child in psutil.Process(process.pid).children():
            if len(child.children()) >= TP:
                return child.pid
        assert process.poll() is None, "the demo ended by itself"
        time.sleep(0.2)
    raise AssertionError("the server started no ranks")


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted(tmp_path: Path, sig: signal.Signals) -> None:
    """Red when a server or one of its ranks outlives the demo."""
    process = subprocess.Popen(demo(tmp_path, "--order", "dense"), cwd=ROOT)
    try:
        session = wait_for_ranks(process)
        os.kill(process.pid, sig)
        code = process.wait(timeout=60)
        deadline = time.monotonic() + 15
        while session_members(session) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert [p.pid for p in session_members(session)] == []
        assert code == (-signal.SIGKILL if sig == signal.SIGKILL else 130)
    finally:
        process.kill()
