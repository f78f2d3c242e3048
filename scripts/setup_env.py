"""Make the environment that every command of this project runs in.

``python scripts/setup_env.py`` creates ``.venv`` (or the folder that ``VENV`` names)
with the pinned SGLang wheel and the packages of ``requirements-dev.txt``. An existing
environment that holds exactly those is reused. ``.venv`` is made anew when it does not;
another folder is left alone, with a message that says what differs. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements-dev.txt"
DEFAULT = ROOT / ".venv"
PINNED = re.compile(
    r"(?P<name>[\w-]+)==(?P<version>[\w.]+)"
    r'(?:; platform_machine == "(?P<machine>\w+)")?'
)
STAMP = "vocab-parallel-draft.lock"
SUPPORTED = ((3, 11), (3, 12))
HEARTBEAT_SECONDS = 30

sys.path.insert(0, str(ROOT / "scripts"))

from fork.pins import Pins, find_wheel  # noqa: E402
from fork.project import ForkError, Project  # noqa: E402

PROJECT = Project(ROOT)
PINS = Pins.load(PROJECT)


def fail(message: str) -> None:
    sys.exit(f"setup_env: {message}")


def wanted() -> str:
    """What the environment has to be made from, as one digest."""
    digest = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    digest.update(PINS.version.encode())
    digest.update(REQUIREMENTS.read_bytes())
    return digest.hexdigest()


def matches(python: Path) -> bool:
    """Whether the environment holds the pinned packages, whoever installed them."""
    version = sys.version_info[:2]
    pinned = {"sglang": PINS.version}
    for line in REQUIREMENTS.read_text().splitlines():
        match = PINNED.fullmatch(line.strip())
        if match and match["machine"] in (None, platform.machine()):
            pinned[match["name"]] = match["version"]
    probe = (
        "import sys, importlib.metadata as m\n"
        "bad = []\n"
        f"if sys.version_info[:2] != {version}:\n"
        f"    bad.append(f'Python {{sys.version_info[:2]}} instead of {version}')\n"
        f"for name, version in {pinned!r}.items():\n"
        "    try:\n"
        "        found = m.version(name)\n"
        "    except m.PackageNotFoundError:\n"
        "        found = 'nothing'\n"
        "    if found != version:\n"
        "        bad.append(f'{name}: {found} instead of {version}')\n"
        "sys.exit('; '.join(bad) or 0)\n"
    )
    try:
        run = subprocess.run([python, "-c", probe], capture_output=True, text=True)
    except OSError as error:
        print(f"setup_env: {python}: {error.strerror}")
        return False
    if run.returncode:
        print(f"setup_env: {python.parent.parent}: {run.stderr.strip()}")
    return run.returncode == 0


def run(title: str, command: list[str | Path]) -> None:
    """Run a long command with a line every half minute; its output only on failure."""
    start = time.monotonic()
    print(f"setup_env: {title} ...", flush=True)
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
    reader.start()
    while True:
        try:
            process.wait(HEARTBEAT_SECONDS)
            break
        except subprocess.TimeoutExpired:
            print(f"setup_env: {title}, {time.monotonic() - start:.0f} s", flush=True)
    reader.join()
    if process.returncode:
        sys.stderr.writelines(lines[-40:])
        fail(f"{title} failed with exit code {process.returncode}")


def main() -> None:
    if sys.version_info[:2] not in SUPPORTED:
        fail(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} is not supported; "
            "set PYTHON to a Python 3.11 or 3.12"
        )
    chosen = os.environ.get("VENV")
    venv = Path(chosen).resolve() if chosen else DEFAULT
    python = venv / "bin" / "python"
    stamp = venv / STAMP
    if python.exists():
        if stamp.exists() and stamp.read_text() == wanted():
            return
        if matches(python):
            if venv == DEFAULT:
                stamp.write_text(wanted())
            return
    if venv != DEFAULT and venv.exists() and (venv.is_file() or any(venv.iterdir())):
        fail(
            f"VENV={chosen} is not an environment that matches the lock; name a new "
            "or empty folder, or a matching environment"
        )
    try:
        wheel = find_wheel(PROJECT, PINS)
    except ForkError as error:
        fail(str(error))
    run(f"creating {venv.name}", [sys.executable, "-m", "venv", "--clear", venv])
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run("installing SGLang (11 GB, some 4 minutes)", [*pip, wheel])
    run("installing the test tools", [*pip, "-r", REQUIREMENTS])
    stamp.write_text(wanted())
    print("setup_env: done", flush=True)


if __name__ == "__main__":
    main()
