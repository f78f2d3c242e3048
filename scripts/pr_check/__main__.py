"""`python -m scripts.pr_check`: a fresh tree of the pin, the pull request on it, its tests.

Nothing of this repository is on the path of what runs, with one exception that a host
without a GPU needs: the CPU engine's stand-ins for `sgl_kernel`, for servers. Every
process says itself which files it loaded, and any other file of this repository, or of
another SGLang, is a fault. `--engine` adds the tests of the engine; what those put on
the path beside is in `suites.run_engine`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from scripts.serving.bare import Roots
from scripts.pr_check.served import compare
from scripts.pr_check.stack import run_stack
from scripts.pr_check.suites import run_engine, run_registered
from scripts.serving import ServerError, cpu_engine, interruptible

STEPS = ("tree", "stack", "registered", "served", "engine")
# In a minute: the kernel through torch, the logits processor, the draft step.
QUICK = ("test_shard_winner.py", "test_vocab_parallel_draft.py", "draft_step")
_START = time.monotonic()


def say(text: str) -> None:
    """One progress line, with the time since the start."""
    print(f"{time.monotonic() - _START:6.0f} s  {text}", flush=True)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pr_check", description=__doc__)
    add = top.add_argument
    root = cpu_engine.ROOT
    add("--out", type=Path, default=root / "build" / "pr-check", help="%(default)s")
    text = "only these, on the tree that is there (without `tree`); repeatable"
    add("--step", action="append", choices=STEPS, help=text)
    add("--quick", action="store_true", help=f"of test/registered only {QUICK}")
    text = "also, or with --step engine only: this test of the engine; repeatable"
    add("--engine", action="append", default=[], metavar="PATH", help=text)
    return top


def make_tree(folder: Path) -> dict[str, Any]:
    """A fresh tree with the pull request's commits on it."""
    shutil.rmtree(folder.parent, ignore_errors=True)
    command = [sys.executable, "scripts/prepare_pr", "--tree", str(folder)]
    command += ["--description", str(folder.parent / "description.md")]
    root = cpu_engine.ROOT
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    lines = (done.stdout + done.stderr).splitlines()
    for line in lines:
        say(f"  {line}")
    wrong = [f"exit code {done.returncode}: {lines[-1:]}"] if done.returncode else []
    state = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(state, cwd=root, capture_output=True, text=True).stdout
    return {"commit": commit.strip(), "said": lines, "faults": wrong}


def roots_of(tree: Path) -> Roots:
    """Raises ValueError where no tree was made."""
    package = tree / "python"
    if not (package / "sglang" / "__init__.py").is_file():
        raise ValueError(f"{tree}: no tree there; run without --step first")
    environment = (Path(sys.prefix), Path(sys.base_prefix))
    return Roots(package, cpu_engine.CPU_ENGINE, environment, cpu_engine.ROOT)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """What the steps found, also kept in the report beside earlier steps on this tree."""
    out: Path = args.out.resolve()
    tree, path = out / "tree", out / "report.json"
    wanted = QUICK if args.quick else ()
    found: dict[str, Any] = {}

    def keep(step: str, value: dict[str, Any]) -> None:
        found[step] = value
        report = json.loads(path.read_text()) if path.exists() else {}
        if step == "engine":
            others = [x for x in report.get(step, []) if x["tests"] != value["tests"]]
            report[step] = [*others, value]
        else:
            report[step] = value
        path.write_text(json.dumps(report, indent=1) + "\n")

    steps = args.step or [*STEPS[:-1], *["engine"] * bool(args.engine)]
    if "tree" in steps:
        say("a fresh tree of the pin with the commits of the pull request")
        keep("tree", make_tree(tree))
    roots = roots_of(tree)
    if "stack" in steps:
        say("each commit by itself")
        keep("stack", run_stack(roots, tree, say))
    if "registered" in steps:
        say("test/registered, with the tree alone on the path")
        keep("registered", run_registered(roots, tree, wanted, out / "logs", say))
    if "served" in steps:
        say("two servers, with the tree and the CPU engine's stand-ins on the path")
        keep("served", compare(roots, out / "served"))
    if "engine" in steps:
        say("tests of the engine, with two observers on the path as well")
        keep("engine", run_engine(roots, args.engine, out, say))
    say(f"report: {path}")
    return found


def all_faults(report: dict[str, Any]) -> list[str]:
    """Every fault with its step before it."""
    return [
        f"{step}: {fault}"
        for step, found in report.items()
        for fault in found["faults"]
    ]


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    # What an outer call put there would be on the path of what runs here.
    for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
        os.environ.pop(name, None)
    try:
        with interruptible():
            wrong = all_faults(run(args))
    except (ValueError, ServerError) as error:
        wrong = [str(error)]
    except KeyboardInterrupt:
        wrong = ["interrupted; every process that was started has been ended"]
    for fault in wrong:
        print(f"pr_check: {fault}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
