"""The pinned release: which wheel, with which hash, and how to get it."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from fork.project import ForkError, Project


@dataclass(frozen=True)
class Pins:
    """`scripts/fork/pins.toml`: the upstream release, our label, wheel hashes."""

    name: str
    version: str
    label: str
    number: int
    sha256: dict[str, str]

    @classmethod
    def load(cls, project: Project) -> Pins:
        data = tomllib.loads(project.pins.read_text("utf-8"))
        return cls(**data["upstream"], **data["local"], sha256=data["sha256"])

    @property
    def local_version(self) -> str:
        return f"{self.version}+{self.label}.{self.number}"

    def wheel_name(self, python: str | None = None, machine: str | None = None) -> str:
        """File name of the pinned wheel for an interpreter tag and a machine."""
        python = python or f"cp{sys.version_info.major}{sys.version_info.minor}"
        for name in self.wheel_names(machine):
            if f"-{python}-" in name:
                return name
        raise ForkError(
            f"no wheel is pinned for {python} on {machine or this_machine()}; pinned "
            "are:\n  " + "\n  ".join(sorted(self.sha256))
        )

    def wheel_names(self, machine: str | None = None) -> list[str]:
        """File names of the pinned wheels for a machine, one a supported Python."""
        machine = machine or this_machine()
        return sorted(x for x in self.sha256 if x.endswith(f"_{machine}.whl"))


def this_machine() -> str:
    return platform.machine().replace("arm64", "aarch64")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checked(wheel: Path, pins: Pins) -> Path:
    """`wheel`, once its name is pinned and its bytes have the pinned hash."""
    if not wheel.is_file():
        raise ForkError(f"{wheel}: no such wheel")
    expected = pins.sha256.get(wheel.name)
    if expected is None:
        raise ForkError(f"{wheel.name} is not pinned in scripts/fork/pins.toml")
    found = sha256_of(wheel)
    if found != expected:
        raise ForkError(
            f"{wheel}: wrong sha256\n  pinned {expected}\n  found  {found}\n"
            "Delete the file and fetch it again, or review the new release and "
            "move the pin (CONTRIBUTING.md)."
        )
    return wheel


def find_wheel(
    project: Project, pins: Pins, wheel: Path | None = None, name: str = ""
) -> Path:
    """The given wheel, or the one called `name` (default: this interpreter's) from
    `build/wheels`, fetched if absent."""
    if wheel is not None:
        return checked(wheel, pins)
    folder = project.build / "wheels"
    wanted = folder / (name or pins.wheel_name())
    if not wanted.exists():
        fetch(folder, pins.name, pins.version, wanted.name)
    if not wanted.exists():
        raise ForkError(
            f"pip brought another wheel than {wanted.name} into {folder}; "
            "give the pinned one with --wheel PATH"
        )
    return checked(wanted, pins)


def fetch(folder: Path, name: str, version: str, like: str) -> None:
    """Download a release's wheel with the tags of the file name `like`.

    The file need not get this very name: a later release may name another platform.
    """
    folder.mkdir(parents=True, exist_ok=True)
    requirement = f"{name}=={version}"
    python, abi, system = like.removesuffix(".whl").split("-")[2:5]
    print(f"fetching {requirement} for {python} into {folder}", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), requirement]
    command += ["--python-version", python.removeprefix("cp"), "--abi", abi]
    command += [flag for tag in system.split(".") for flag in ("--platform", tag)]
    if subprocess.run(command).returncode:
        raise ForkError(
            f"pip could not download {requirement} for {python} and {system}; download "
            "it elsewhere and give it with --wheel PATH"
        )
