"""`installed.py base|fork`: check what SGLang an environment has. Standard library only.

base: SGLang of the pin, so that the fork's wheel fits over it.
fork: the fork's wheel, its files as they were packed, and its flag in the launcher.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from fork.pins import Pins  # noqa: E402
from fork.project import Project  # noqa: E402

FLAG = "--speculative-vocab-parallel-draft"
PINS = Pins.load(Project(ROOT))


def problem(stage: str, version: str | None) -> str | None:
    """What is wrong with an installed version; None when nothing is."""
    wanted = PINS.version if stage == "base" else PINS.local_version
    if version is None:
        return f"SGLang is not installed; {stage} needs {wanted}"
    # An editable checkout of the release may add a label of its own.
    plain = version.partition("+")[0] if stage == "base" else version
    if plain != wanted:
        return f"SGLang {version} is installed; {stage} needs {wanted}"
    return None


def installed_version() -> str | None:
    try:
        return importlib.metadata.version(PINS.name)
    except importlib.metadata.PackageNotFoundError:
        return None


def launcher_knows_flag() -> bool:
    """Whether the launcher of this environment takes the fork's flag."""
    code = (
        "import argparse\n"
        "from sglang.srt.server_args import ServerArgs\n"
        "parser = argparse.ArgumentParser()\n"
        "ServerArgs.add_cli_args(parser)\n"
        f"parser.parse_args(['--model-path', 'x', {FLAG!r}, 'on'])\n"
    )
    # -P: not the sources of this folder, only what is installed.
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd="/", capture_output=True, text=True
    )
    if run.returncode:
        print(run.stderr[-2000:], file=sys.stderr)
    return run.returncode == 0


def main(stage: str) -> int:
    """0, or 1 with one line that says what is wrong."""
    if stage not in ("base", "fork"):
        print(f"installed: {stage!r}: base or fork", file=sys.stderr)
        return 2
    wrong = problem(stage, installed_version())
    if wrong is None and stage == "fork" and not launcher_knows_flag():
        wrong = f"the launcher does not take {FLAG}"
    if wrong is not None:
        print(f"installed: {wrong}", file=sys.stderr)
        return 1
    print(f"installed: SGLang {installed_version()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
