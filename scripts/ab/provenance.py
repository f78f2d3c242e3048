"""Where a figure comes from: versions, commit, hardware, and what is served."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from pathlib import Path
from typing import Any

from scripts.serving.cpu_engine import ROOT
from scripts.serving.hardware import describe

_PACKAGES = ("torch", "triton", "transformers", "sglang-kernel", "sgl-kernel")


def context(fork: Path | None, clients: dict[str, str]) -> dict[str, Any]:
    """What every raw record carries."""
    return {
        "commit": commit(),
        "served": served(fork),
        "versions": versions() | {f"client {k}": v for k, v in clients.items()},
        "hardware": describe(),
    }


def commit() -> str:
    """The repository's commit, `+changes` when files differ from it; `unknown` outside
    of one (an image carries it in the file COMMIT)."""
    try:
        head = _git("rev-parse", "HEAD")
        return head + ("+changes" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        path = ROOT / "COMMIT"
        return path.read_text().strip() if path.is_file() else "unknown"


def served(fork: Path | None) -> str:
    """The fork tree by the digest of what it was built from, or the installed wheel."""
    if fork is None:
        return f"sglang {importlib.metadata.version('sglang')}, installed"
    try:
        inputs = json.loads((fork / "stamp.json").read_text())["inputs"]
    except (OSError, ValueError, KeyError):
        inputs = "unknown inputs"
    return f"fork tree {inputs[:16]}"


def versions() -> dict[str, str]:
    """Installed packages that decide speed."""
    found = {"sglang": importlib.metadata.version("sglang")}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git(*args: str) -> str:
    run = subprocess.run(
        ["git", *args], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()
