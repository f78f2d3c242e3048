"""The environment script reuses what matches and never clears another folder."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup_env.py"


def setup_env(venv: Path) -> subprocess.CompletedProcess:
    env = os.environ | {"VENV": str(venv)}
    command = [sys.executable, str(SCRIPT)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    """Red when a mistyped VENV loses its contents."""
    kept = tmp_path / "notes.txt"
    kept.write_text("mine")
    run = setup_env(tmp_path)
    assert run.returncode == 1
    assert f"VENV={tmp_path}" in run.stderr
    assert kept.read_text() == "mine"


def test_a_matching_environment_is_reused() -> None:
    """Red when an environment that matches the lock is refused or made anew."""
    run = setup_env(Path(sys.prefix))
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
