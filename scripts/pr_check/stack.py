"""Each commit of the pull request by itself: what it brings or changes can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from scripts.serving.bare import Roots
from scripts.serving.status import Say

BRANCH = "vocab-parallel-draft"
LIMIT_S = 300
# Modules and test files on the command line; a line for each that cannot be imported.
PROBE = """
import importlib, runpy, sys
for name in sys.argv[1:]:
    try:
        runpy.run_path(name) if "/" in name else importlib.import_module(name)
    except BaseException as error:
        print(f"STACK {name}: {type(error).__name__}: {error}".splitlines()[0])
"""


def git(root: Path, *arguments: str) -> list[str]:
    """Lines of one git command. Raises CalledProcessError."""
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def run_stack(roots: Roots, root: Path, say: Say) -> dict[str, Any]:
    """Check out commit after commit and import its modules and test files, the tree
    alone on the path.

    A changed module that the base cannot import on this machine either is left out.
    """
    commits = git(root, "rev-list", "--reverse", f"main..{BRANCH}")
    rows, wrong = [], []
    try:
        git(root, "checkout", "--quiet", "--detach", "main")
        not_here = failing(roots, modules(root, "main", BRANCH, "M"))
        for commit in commits:
            git(root, "checkout", "--quiet", commit)
            title = git(root, "log", "-1", "--format=%s")[0]
            names = modules(root, f"{commit}^", commit, "AM")
            names = [name for name in names if name not in not_here]
            bad = failing(roots, names)
            rows.append({"commit": title, "imported": len(names) - len(bad)})
            say(f"  {title}: {len(names) - len(bad)} of {len(names)} files imported")
            wrong += [f"{title}: {name}: {error}" for name, error in bad.items()]
    finally:
        git(root, "checkout", "--quiet", BRANCH)
    if not commits:
        wrong.append(f"{root}: no commits on {BRANCH}")
    return {"commits": rows, "not_importable_at_base": not_here, "faults": wrong}


def modules(root: Path, old: str, new: str, kinds: str) -> list[str]:
    """Modules of the package and paths of tests that differ between two commits, by
    kinds of difference."""
    command = ["diff", "--name-only", f"--diff-filter={kinds}", old, new, "--"]
    paths = git(root, *command, "python/sglang/*.py", "test/registered/*.py")
    return [module_of(path) if path.startswith("python/") else path for path in paths]


def module_of(path: str) -> str:
    """`python/a/b.py` as `a.b`."""
    name = path.removeprefix("python/").removesuffix(".py").removesuffix("/__init__")
    return name.replace("/", ".")


def failing(roots: Roots, names: list[str]) -> dict[str, str]:
    """Those of the modules that cannot be imported, with the error."""
    env = os.environ | {"PYTHONPATH": str(roots.tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *names],
        cwd=roots.tree.parent,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    lines = [x[6:] for x in done.stdout.splitlines() if x.startswith("STACK ")]
    found = dict(line.split(": ", 1) for line in lines)
    if done.returncode and not found:
        last = done.stderr.strip().splitlines()[-1:]
        return {"python": f"exit code {done.returncode}: {last}"}
    return found
