"""The count of skipped GPU tests, with the reason, at the end of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.skip_summary import pytest_terminal_summary, skip_lines

ROOT = Path(__file__).resolve().parents[2]


def test_gpu_tests_are_counted_by_reason() -> None:
    """Red when a reason or a count is lost, or another test counts as one of a GPU."""
    skipped = [
        ("test_a.py::TestKernelsOnCuda::test_x", "needs a CUDA device"),
        ("test_a.py::TestKernelsOnCuda::test_y", "needs a CUDA device"),
        ("test_b_cuda.py::test_z", "needs two GPUs"),
        ("test_c.py::test_big", "no address space"),
    ]
    assert skip_lines(skipped) == [
        "GPU tests: 3 skipped (2 needs a CUDA device; 1 needs two GPUs)",
        "other tests: 1 skipped (1 no address space)",
    ]


def test_nothing_skipped_says_nothing() -> None:
    assert skip_lines([]) == []


TESTS = """
import unittest

@unittest.skipUnless(False, "needs a CUDA device")
class TestThingsOnCuda(unittest.TestCase):
    def test_one(self): ...
    def test_two(self): ...

class TestThings(unittest.TestCase):
    def test_here(self): ...
    def test_big(self): self.skipTest("no memory")
"""


def test_a_run_prints_the_counts(tmp_path: Path) -> None:
    """Red when a run no longer says how many GPU tests it skipped, and why."""
    file = tmp_path / "test_things.py"
    file.write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "scripts.skip_summary"]
    done = subprocess.run([*command, file], cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert "GPU tests: 2 skipped (2 needs a CUDA device)" in lines
    assert "other tests: 1 skipped (1 no memory)" in lines
    assert "1 passed, 3 skipped" in lines[-1]


def test_our_runs_have_the_hook(pytestconfig: pytest.Config) -> None:
    """Red when the tests' configuration loses the hook."""
    hooks = pytestconfig.pluginmanager.hook.pytest_terminal_summary.get_hookimpls()
    assert pytest_terminal_summary in [hook.function for hook in hooks]
