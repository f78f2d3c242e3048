"""The fork tree: pristine files as hard links, changed and new files written."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from fork.pins import Pins
from fork.plan import Plan, make_plan
from fork.pristine import PACKAGE, package_in, pristine_package, verify
from fork.project import ForkError, Project

STAMP = "stamp.json"


def build_tree(project: Project, out: Path, wheel: Path | None = None) -> str:
    """Build `out`/sglang from the pinned wheel, or find it up to date.

    Returns a line that says what was done. The finished tree is moved into
    place in one step; a failed build leaves the old one as it was.
    """
    project.build.mkdir(parents=True, exist_ok=True)
    with exclusive(project.build / ".lock"):
        wheel, package = pristine_package(project, Pins.load(project), wheel)
        inputs = inputs_digest(project, wheel)
        if up_to_date(out, inputs):
            return f"{out / PACKAGE} is up to date"
        verify(package)
        plan = make_plan(project, package).require()
        partial = out.with_name(f".{out.name}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            written = write_tree(package, partial / PACKAGE, plan)
            stamp = {"inputs": inputs, "wheel": wheel.name, "written": written}
            (partial / STAMP).write_text(json.dumps(stamp, indent=1), "utf-8")
            keep_bytecode(out / PACKAGE, partial / PACKAGE)
            swap(partial, out)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    unreviewed = ""
    if plan.unlocked:
        unreviewed = f"; {len(plan.unlocked)} edits are not in the lock yet"
    return (
        f"built {out / PACKAGE}: {len(plan.changes)} changed and "
        f"{len(plan.new_files)} new files{unreviewed}"
    )


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """One build at a time: concurrent ones wait."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def inputs_digest(project: Project, wheel: Path) -> str:
    """A hash over everything that decides the tree's bytes."""
    roots = [project.edits, project.new_files, Path(__file__).parent]
    total = hashlib.sha256(f"{project.root} {wheel.name}".encode())
    for path in [project.pins, *(p for root in roots for p in sorted(root.rglob("*")))]:
        if path.is_file() and "__pycache__" not in path.parts:
            data = path.read_bytes()
            total.update(f"\0{path}\0{len(data)}\0".encode() + data)
    return total.hexdigest()


def up_to_date(out: Path, inputs: str) -> bool:
    try:
        stamp = json.loads((out / STAMP).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    if stamp.get("inputs") != inputs:
        return False
    for name, digest in stamp["written"].items():
        path = out / PACKAGE / name
        if not path.is_file() or sha256(path.read_bytes()) != digest:
            return False
    return True


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_tree(package: Path, target: Path, plan: Plan) -> dict[str, str]:
    """Write the tree; returns the hashes of the files that are not upstream's."""
    written = {name: change.after for name, change in plan.changes.items()}
    written |= plan.new_files
    for folder, folders, files in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        relative = Path(folder).relative_to(package)
        (target / relative).mkdir(parents=True, exist_ok=True)
        for name in files:
            if (relative / name).as_posix() not in written:
                link(Path(folder, name), target / relative / name)
    for name, data in written.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return {name: sha256(data) for name, data in sorted(written.items())}


def link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def keep_bytecode(old: Path, new: Path) -> None:
    """Move compiled files over whose source is the same inode as before.

    They save a start of the server some 20 s on a small machine. A written file
    never keeps its bytecode: Python would compare only size and seconds.
    """
    for cache in old.rglob("__pycache__") if old.is_dir() else ():
        folder = new / cache.parent.relative_to(old)
        for compiled in cache.glob("*.pyc"):
            name = compiled.name.split(".")[0] + ".py"
            before, after = cache.parent / name, folder / name
            if before.is_file() and after.is_file() and before.samefile(after):
                (folder / "__pycache__").mkdir(exist_ok=True)
                compiled.rename(folder / "__pycache__" / compiled.name)


def swap(partial: Path, out: Path) -> None:
    if not out.exists():
        partial.rename(out)
        return
    if not (out / STAMP).is_file() and any(out.iterdir()):
        raise ForkError(f"{out} is not a fork tree; it stays as it is, name another")
    old = out.with_name(f".{out.name}.{os.getpid()}.old")
    out.rename(old)
    try:
        partial.rename(out)
    except OSError:
        old.rename(out)
        raise
    shutil.rmtree(old)


def apply_in_place(
    project: Project, tree: Path, *, engine: bool, reference: Path | None
) -> str:
    """Change a checkout or tree where it lies: every file, or none."""
    package = package_in(tree)
    plan = make_plan(project, package, engine=engine, reference=reference)
    plan.problems += [
        f"{place}: not in the lock; review it, then run: python scripts/fork lock"
        for place in plan.unlocked
    ]
    plan.require()
    written = {name: change.after for name, change in plan.changes.items()}
    replace_all(package, written | plan.new_files)
    return f"{package}: {len(plan.changes)} files changed, {len(plan.new_files)} added"


def replace_all(package: Path, written: dict[str, bytes]) -> None:
    """Write files beside their targets, then rename them; undo all on an error."""
    suffix = f".{os.getpid()}.new"
    originals: dict[Path, bytes | None] = {}
    temporary: list[Path] = []
    try:
        for name, data in written.items():
            path = package / name
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(path.name + suffix)
            temporary.append(beside)
            beside.write_bytes(data)
            if path.exists():
                shutil.copymode(path, beside)
        for name in written:
            path = package / name
            originals[path] = path.read_bytes() if path.exists() else None
            path.with_name(path.name + suffix).replace(path)
    except BaseException:
        for path, data in originals.items():
            path.unlink(missing_ok=True)
            if data is not None:
                path.write_bytes(data)
        for path in temporary:
            path.unlink(missing_ok=True)
        raise
