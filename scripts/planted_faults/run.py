"""A copy of the fork with one fault in it, and pytest on that copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .table import Fault

ROOT = Path(__file__).resolve().parents[2]
# Of pytest: tests ran and some failed.
_TESTS_FAILED = 1
LIMIT_S = 900


@dataclass(frozen=True)
class Outcome:
    """What pytest said: `green`, `red`, or `broken` when no test could tell."""

    verdict: str
    seconds: float
    summary: str


def link_tree(tree: Path, copy: Path) -> None:
    """A copy of `tree` whose files are hard links; writers have to unlink first."""
    shutil.rmtree(copy, ignore_errors=True)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(tree, copy, copy_function=os.link, ignore=ignore)


@contextmanager
def planted(fault: Fault, copy: Path) -> Iterator[None]:
    """The fault in `copy`, whose other links do not see it."""
    path = copy / fault.file
    original = path.read_text()
    changed = fault.apply(original)
    aside = path.with_name(path.name + ".original")
    path.rename(aside)
    try:
        path.write_text(changed)
        yield
    finally:
        aside.replace(path)


def run_tests(tests: Sequence[str], tree: Path, recordings: Path) -> Outcome:
    """pytest on `tests` with `tree` as the fork."""
    parts = [tree, ROOT / "python/cpu_engine", ROOT / "python/collective_counter"]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, parts)),
        # A fault may have its original's size and second: no compiled file is kept.
        "PYTHONDONTWRITEBYTECODE": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "VPDRAFT_FORK": str(tree),
        "VPDRAFT_RECORDINGS": str(recordings),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    start = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "--durations=0", "--durations-min=1e6", *tests],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Outcome("broken", time.monotonic() - start, f"over {LIMIT_S} s")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    verdict = {0: "green", _TESTS_FAILED: "red"}.get(done.returncode, "broken")
    failed = [
        line for line in lines if line.startswith(("FAILED", "SUBFAILED", "ERROR"))
    ]
    summary = (failed or lines or [done.stderr.strip()])[-1]
    return Outcome(verdict, time.monotonic() - start, summary)
