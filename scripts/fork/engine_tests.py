"""Whether the engine of a release serves with the edits on, in this environment."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from fork.plan import Plan
from fork.project import Project
from fork.tree import write_tree

LIMIT_S = 600
NOT_ASKED = "not run (--engine-tests does)"


def unmet(package: Path) -> list[str]:
    """Requirements of an extracted release that the installed packages do not meet."""
    from packaging.requirements import Requirement

    (metadata,) = package.parent.glob("*.dist-info/METADATA")
    lines = re.findall(r"^Requires-Dist: (.+)$", metadata.read_text("utf-8"), re.M)
    found = []
    for requirement in map(Requirement, lines):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = "nothing"
        fits = version != "nothing" and requirement.specifier.contains(
            version, prereleases=True
        )
        if not fits:
            wanted = f"{requirement.name}{requirement.specifier}"
            found.append(f"{wanted}, here is {version}")
    return found


def run(project: Project, version: str, package: Path, plan: Plan) -> str:
    """One line: what serving this release both ways gave, or why it was not tried.

    Two servers, the flag off and on, with nothing but the tree and the CPU engine's
    stand-ins on their path (`scripts/pr_check/served.py`).
    """
    if plan.refused:
        return f"not run: {len(plan.refused)} edits are refused"
    if plan.problems:
        return f"not run: {plan.problems[0]}"
    out = project.build / "compat" / version
    shutil.rmtree(out, ignore_errors=True)
    write_tree(package, out / "tree" / "python" / package.name, plan)
    command = [sys.executable, "-m", "scripts.pr_check", "--step", "served"]
    command += ["--out", str(out)]
    try:
        done = subprocess.run(
            command, cwd=project.root, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"failed: more than {LIMIT_S} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return f"failed: {lines[0]}"
    served = json.loads((out / "report.json").read_text("utf-8"))["served"]
    return (
        f"passed: {served['requests']} requests and {served['output_tokens']} tokens, "
        "dense and packed the same"
    )
