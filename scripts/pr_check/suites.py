"""The tests of the pull request on its tree: those that went upstream, and the engine's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.serving.bare import VERBOSE, Roots, feature_files, loaded_files
from scripts.serving import cpu_engine
from scripts.serving.status import Say

REGISTERED = "test/registered"
# Every test of `make test` that starts a server.
ENGINE = ("test/e2e", "test/cpu_engine/test_families_served.py")
LIMIT_S = 900
_RAN = re.compile(r"^Ran (\d+) tests? in ([\d.]+)s$", re.M)
_END = re.compile(r"^(OK|FAILED)( \(.*\))?$", re.M)
_FAULT = re.compile(r"^(?:FAIL|ERROR): .*$", re.M)


def registered_tests(root: Path, wanted: Sequence[str]) -> list[str]:
    """Test files of the tree, by path; `wanted` are parts of names, none means all."""
    found = sorted((root / REGISTERED).rglob("test_*.py"))
    paths = [path.relative_to(root).as_posix() for path in found]
    return [p for p in paths if not wanted or any(word in p for word in wanted)]


def run_registered(
    roots: Roots, root: Path, wanted: Sequence[str], logs: Path, say: Say
) -> dict[str, Any]:
    """Each file as upstream's CI runs it, with the tree's package alone on the path."""
    logs.mkdir(parents=True, exist_ok=True)
    rows = []
    for path in registered_tests(root, wanted):
        row = run_file(roots, root, path, logs / f"{Path(path).stem}.log")
        say(f"  {path}: {row['said']}, {row['seconds']:.0f} s")
        rows.append(row)
    wrong = [f"{row['file']}: {fault}" for row in rows for fault in row["faults"]]
    if not rows:
        wrong.append(f"no file below {REGISTERED} matches {list(wanted)}")
    used = {name for row in rows for name in row.pop("feature_files")}
    return {"files": rows, "feature_files": sorted(used), "faults": wrong}


def run_file(roots: Roots, root: Path, path: str, log: Path) -> dict[str, Any]:
    """One file; passed means that tests ran, none failed, and only the tree's SGLang
    was loaded."""
    env = os.environ | VERBOSE
    env |= {"PYTHONPATH": str(roots.tree), "OMP_NUM_THREADS": "1"}
    start, code = time.monotonic(), None
    with log.open("w") as out:
        try:
            done = subprocess.run(
                [sys.executable, path],
                cwd=root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            pass
    text = log.read_text(errors="replace")
    files = loaded_files(text)
    return {
        "file": path,
        "seconds": round(time.monotonic() - start, 1),
        "said": verdict(text),
        "feature_files": feature_files(files, roots.tree),
        "faults": file_faults(roots, text, files, code),
    }


def verdict(text: str) -> str:
    """What unittest said at the end: `12 tests, OK (skipped=3)`."""
    ran, end = _RAN.findall(text), _END.findall(text)
    if not ran or not end:
        return "no test ran"
    return f"{ran[-1][0]} tests, {''.join(end[-1])}"


def file_faults(
    roots: Roots, text: str, files: set[Path], code: int | None
) -> list[str]:
    """Why a file did not pass; [] when it did."""
    found = [f"loaded {path}" for path in roots.strays(files)]
    if code is None:
        found.append(f"more than {LIMIT_S} s")
    elif code or verdict(text) == "no test ran" or "FAILED" in verdict(text):
        found += _FAULT.findall(text) or [f"exit code {code}, {verdict(text)}"]
    if roots.tree / "sglang/__init__.py" not in files:
        found.append("sglang was not loaded from the tree")
    return found


def run_engine(
    roots: Roots, wanted: Sequence[str], folder: Path, say: Say
) -> dict[str, Any]:
    """pytest of this repository against servers of the tree.

    The tests are clients and launchers. Beside the tree and the stand-ins their servers
    have two observers of this repository on the path, which the tests read: the draft
    recorder and the collective counter. `served.compare` does without.
    """
    parts = [roots.tree, roots.stand_ins, cpu_engine.COLLECTIVE_COUNTER]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, parts)),
        "SGLANG_USE_CPU_ENGINE": "1",
        # The tests take it for the fork, and stop where `sglang` is not in it.
        "VPDRAFT_FORK": str(roots.tree),
        "VPDRAFT_RECORDINGS": str(folder / "recordings"),
    }
    tests = list(wanted or ENGINE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    start = time.monotonic()
    log = folder / "engine.log"
    with log.open("a") as out:
        code = subprocess.run(
            command,
            cwd=cpu_engine.ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        ).returncode
    lines = [line for line in log.read_text(errors="replace").splitlines() if line]
    last = lines[-1].strip("= ") if lines else ""
    say(f"  {' '.join(tests)}: {last}")
    wrong = [] if code == 0 else [f"pytest, exit code {code}: {last} (log {log})"]
    seconds = round(time.monotonic() - start, 1)
    return {"tests": tests, "said": last, "seconds": seconds, "faults": wrong}
