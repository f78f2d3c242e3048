"""What of upstream's pre-commit can run here, on the files of the pull request."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Check:
    """One check: passed True or False, or None when the tool is not here."""

    name: str
    passed: bool | None
    note: str = ""

    def __str__(self) -> str:
        state = {True: "passed", False: "FAILED", None: "not run"}[self.passed]
        return f"{self.name}: {state}" + (f" ({self.note})" if self.note else "")


def run_checks(
    root: Path, base: str, new: list[str], changed: list[str]
) -> list[Check]:
    """All checks on the tree at `root`, whose stack begins at `base`.

    `new` and `changed` are paths in the tree; changed files are upstream's own, and
    black is not asked about them: their layout is that of `ruff format`.
    """
    ours = [path for path in new if path.endswith(".py")]
    theirs = [path for path in changed if path.endswith(".py")]
    benchmark = [path for path in ours if path.startswith("benchmark/")]
    return [
        whitespace(root, base),
        tool(root, "black", ["--check", "--line-length=88", *ours]),
        tool(root, "ruff", [*RUFF_FORMAT, *ours, *theirs], label="ruff format"),
        tool(root, "flake8", [*FLAKE8, *ours]),
        tool(root, "isort", [*ISORT, *ours]),
        tool(root, "ruff", [*UNUSED, *benchmark], label="ruff F401 on benchmark/"),
        # A checkout's .codespellrc is found by the tool itself.
        tool(root, "codespell_lib", new, label="codespell"),
        parses(root, ours + theirs),
        ends(root, new),
    ]


RUFF_FORMAT = ["format", "--check", "--quiet", "--isolated", "--line-length=88"]
FLAKE8 = ["--isolated", "--max-line-length=100", "--extend-ignore=E203,W503"]
# As upstream's .isort.cfg says; a tree from the wheel has none.
ISORT = ["--check", "--quiet", "--profile=black", "--project=sglang"]
UNUSED = ["check", "--quiet", "--isolated", "--select=F401"]


def tool(root: Path, module: str, arguments: list[str], label: str = "") -> Check:
    """`python -m module` in the tree, with its version; not run where it is missing."""
    name = label or module
    command = [sys.executable, "-m", module]
    try:
        probe = subprocess.run([*command, "--version"], capture_output=True, text=True)
    except OSError as error:
        return Check(name, None, str(error))
    if probe.returncode:
        return Check(name, None, f"{module} is not installed")
    version = probe.stdout.split("\n")[0].strip()
    done = subprocess.run(
        [*command, *arguments], cwd=root, capture_output=True, text=True
    )
    output = (done.stdout + done.stderr).strip().splitlines()
    note = version if done.returncode == 0 else "; ".join(output[:4])
    return Check(name, done.returncode == 0, note)


def whitespace(root: Path, base: str) -> Check:
    command = ["git", "diff", "--check", base, "HEAD"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    note = "; ".join(done.stdout.splitlines()[:3])
    return Check("git diff --check", done.returncode == 0, note)


def parses(root: Path, paths: list[str]) -> Check:
    wrong = []
    for path in paths:
        try:
            compile((root / path).read_bytes(), path, "exec", dont_inherit=True)
        except SyntaxError as error:
            wrong.append(f"{path}:{error.lineno}: {error.msg}")
    return Check("check-ast", not wrong, "; ".join(wrong[:3]))


def ends(root: Path, paths: list[str]) -> Check:
    """end-of-file-fixer: one newline at the end of a file that is not empty."""
    wrong = []
    for path in paths:
        data = (root / path).read_bytes()
        if data and (not data.endswith(b"\n") or data.endswith(b"\n\n")):
            wrong.append(path)
    return Check("end-of-file-fixer", not wrong, "; ".join(wrong[:3]))
