"""Upstream's own bytes: the extracted wheel, and trees that a user names."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import zipfile
from pathlib import Path

from fork.pins import Pins, fetch, find_wheel
from fork.project import ForkError, Project

PACKAGE = "sglang"


def pristine_package(
    project: Project, pins: Pins, wheel: Path | None = None
) -> tuple[Path, Path]:
    """The wheel and its extracted package, `build/pristine/<sha12>/sglang`."""
    wheel = find_wheel(project, pins, wheel)
    folder = project.build / "pristine" / pins.sha256[wheel.name][:12]
    if not folder.exists():
        extract(wheel, folder)
    return wheel, folder / PACKAGE


def release_package(project: Project, pins: Pins, version: str) -> Path:
    """The extracted package of any release, fetched if absent; its hash is not pinned.

    Raises ForkError when the index does not serve this release for this interpreter.
    """
    if version == pins.version:
        return pristine_package(project, pins)[1]
    folder = project.build / "releases" / version
    if not folder.exists():
        extract(release_wheel(project, pins, version, pins.wheel_name()), folder)
    return folder / PACKAGE


def release_wheel(project: Project, pins: Pins, version: str, like: str) -> Path:
    """The wheel of any release with the Python and the machine of the name `like`."""
    folder = project.build / "wheels"
    python, machine = like.split("-")[2], like.rpartition("_")[2]
    if machine.startswith("64"):  # x86_64 has an underscore of its own
        machine = f"x86_{machine}"
    pattern = f"{pins.name}-{version}-{python}-*{machine}"
    if not list(folder.glob(pattern)):
        fetch(folder, pins.name, version, like)
    found = sorted(folder.glob(pattern))
    if not found:
        raise ForkError(f"pip brought no wheel {pattern} into {folder}")
    return found[0]


def cached_package(project: Project, pins: Pins) -> Path | None:
    """An already extracted pristine package, whichever wheel it came from."""
    for digest in pins.sha256.values():
        package = project.build / "pristine" / digest[:12] / PACKAGE
        if package.is_dir():
            return package
    return None


def extract(wheel: Path, folder: Path) -> None:
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(partial)
        for info in archive.infolist():
            if not info.is_dir():
                executable = (info.external_attr >> 16) & 0o111
                # Read-only: the fork tree holds hard links to these files.
                (partial / info.filename).chmod(0o555 if executable else 0o444)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)
        if not folder.is_dir():
            raise


def verify(package: Path) -> None:
    """Compare every file of an extracted wheel with its RECORD.

    Raises ForkError when a file was changed: the fork tree shares inodes with
    this folder, so a write into the one can reach the other.
    """
    folder = package.parent
    (record,) = folder.glob("*.dist-info/RECORD")
    damaged = []
    for name, digest, _ in csv.reader(io.StringIO(record.read_text("utf-8"))):
        path = folder / name
        if digest and (not path.is_file() or record_hash(path.read_bytes()) != digest):
            damaged.append(name)
    if damaged:
        raise ForkError(
            f"{folder}: {len(damaged)} files differ from the wheel, {damaged[0]} "
            "first; delete this folder, it is made again from the wheel"
        )


def record_hash(data: bytes) -> str:
    """The hash of `data` as a wheel's RECORD writes it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def package_in(tree: Path) -> Path:
    """The sglang package in `tree`: a checkout, a folder around it, or itself."""
    for candidate in (tree / "python" / PACKAGE, tree / PACKAGE, tree):
        if (candidate / "__init__.py").is_file():
            return candidate
    raise ForkError(
        f"--tree {tree}: no sglang package there; expected a checkout with "
        "python/sglang, a folder with sglang, or the package itself"
    )
