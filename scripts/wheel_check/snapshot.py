"""Every file of an environment with its hash, and how two such lists differ."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

Snapshot = dict[str, str]
_HEADER = 16  # of a compiled file: magic, flags, time and size of the source


@dataclass
class Hasher:
    """SHA-256 of files; one whose inode, size and time are known is not read again."""

    known: dict[tuple[int, int, int], str] = field(default_factory=dict)

    def __call__(self, path: Path) -> str:
        about = path.stat()
        key = (about.st_ino, about.st_size, about.st_mtime_ns)
        if key not in self.known:
            with path.open("rb") as file:
                self.known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self.known[key]


def take(folder: Path, digest: Callable[[Path], str]) -> Snapshot:
    """Files and links below `folder` by relative path.

    A compiled file stands for whether Python would use it: it holds the time at which
    its source was installed, and the same source need not compile to the same bytes.
    """
    found = {}
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if Path(place, name).is_symlink()]
        for name in (*names, *links):
            path = Path(place, name)
            found[path.relative_to(folder).as_posix()] = describe(path, digest)
    return found


def describe(path: Path, digest: Callable[[Path], str]) -> str:
    if path.is_symlink():
        return f"link to {os.readlink(path)}"
    if path.suffix == ".pyc" and path.parent.name == "__pycache__":
        return "fits its source" if fits(path) else "does not fit its source"
    return digest(path)


def fits(compiled: Path) -> bool:
    """Whether the compiled file was made from its source as it lies there now."""
    source = Path(importlib.util.source_from_cache(str(compiled)))
    header = compiled.open("rb").read(_HEADER)
    if not source.is_file() or len(header) < _HEADER:
        return False
    about = source.stat()
    time, size = struct.unpack("<8xII", header)
    return (time, size) == (int(about.st_mtime), about.st_size)


@dataclass(frozen=True)
class Difference:
    """What a later snapshot has more, has no more, and has with other bytes."""

    added: list[str]
    removed: list[str]
    changed: list[str]

    @classmethod
    def of(cls, before: Snapshot, after: Snapshot) -> Difference:
        both = before.keys() & after.keys()
        return cls(
            added=sorted(after.keys() - before.keys()),
            removed=sorted(before.keys() - after.keys()),
            changed=sorted(name for name in both if before[name] != after[name]),
        )

    def lines(self) -> list[str]:
        """Every path, with what happened to it."""
        return [
            *(f"added {name}" for name in self.added),
            *(f"removed {name}" for name in self.removed),
            *(f"changed {name}" for name in self.changed),
        ]


def copy_environment(source: Path, target: Path) -> None:
    """A copy of hard links where the file system allows it: who changes a file of it
    has to write a new one, as pip and the compiler of Python do."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True, copy_function=link_or_copy)


def link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)
