"""The fork's wheel: the pinned wheel with the upstream edits and new files in it."""

from __future__ import annotations

import csv
import io
import os
import re
import zipfile
from pathlib import Path

from fork.pins import Pins
from fork.plan import Plan, make_plan
from fork.pristine import PACKAGE, pristine_package, record_hash, verify
from fork.project import ForkError, Project

TIMESTAMP = (1980, 1, 1, 0, 0, 0)
READABLE = 0o100644 << 16

Entries = dict[str, bytes | zipfile.ZipInfo]  # new bytes, or an entry to copy


def build_wheel(project: Project, out: Path, wheel: Path | None = None) -> Path:
    """Write the wheel into `out` and return its path.

    Edits for the CPU engine stay out. Equal inputs give equal bytes: entries are
    sorted and carry a fixed time.
    """
    pins = Pins.load(project)
    wheel, package = pristine_package(project, pins, wheel)
    verify(package)
    plan = make_plan(project, package, engine=False).require()
    name = wheel.name.replace(f"-{pins.version}-", f"-{pins.local_version}-", 1)
    out.mkdir(parents=True, exist_ok=True)
    partial = out / f".{name}.{os.getpid()}"
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = merged(archive, project, pins, plan)
            record = f"{dist_info(pins.name, pins.local_version)}/RECORD"
            write_archive(partial, archive, entries, record)
        partial.replace(out / name)
    finally:
        partial.unlink(missing_ok=True)
    return out / name


def dist_info(name: str, version: str) -> str:
    return f"{name}-{version}.dist-info"


def merged(
    archive: zipfile.ZipFile, project: Project, pins: Pins, plan: Plan
) -> Entries:
    """All entries but RECORD: upstream's, ours, and the renamed dist-info."""
    old = dist_info(pins.name, pins.version)
    new = dist_info(pins.name, pins.local_version)
    entries: Entries = {}
    for info in archive.infolist():
        if not info.is_dir() and info.filename != f"{old}/RECORD":
            entries[re.sub(f"^{re.escape(old)}/", f"{new}/", info.filename)] = info
    for file, change in plan.changes.items():
        entries[f"{PACKAGE}/{file}"] = change.after
    for file, data in plan.new_files.items():
        entries[f"{PACKAGE}/{file}"] = data
    if (name := f"{PACKAGE}/_version.py") in entries:
        entries[name] = version_file(archive.read(name), pins)
    entries[f"{new}/METADATA"] = metadata(archive.read(f"{old}/METADATA"), pins)
    entries[f"{new}/licenses/NOTICE"] = notice(project, plan)
    if f"{new}/licenses/LICENSE" not in entries:
        entries[f"{new}/licenses/LICENSE"] = (project.root / "LICENSE").read_bytes()
    return entries


def metadata(data: bytes, pins: Pins) -> bytes:
    """Upstream's METADATA with the local version and our NOTICE."""
    line = re.compile(rf"^Version: {re.escape(pins.version)}$".encode(), re.M)
    new = f"Version: {pins.local_version}\nLicense-File: NOTICE".encode()
    changed, count = line.subn(new, data, count=1)
    if count != 1:
        raise ForkError(f"the wheel's METADATA has no Version: {pins.version}")
    return changed


def version_file(data: bytes, pins: Pins) -> bytes:
    """The release's generated `_version.py` with the local version: the server and
    `sglang version` then say which package answers."""
    numbers = pins.version.split(".")
    if not all(number.isdigit() for number in numbers):
        raise ForkError(f"version {pins.version}: only numbers and dots are expected")
    tuple_of = ", ".join(numbers)
    local = f"{pins.label}.{pins.number}"
    for old, new in (
        (f"'{pins.version}'", f"'{pins.local_version}'"),
        (f"({tuple_of})", f"({tuple_of}, '{local}')"),
    ):
        if data.count(old.encode()) != 1:
            raise ForkError(f"the wheel's _version.py does not say {old} once")
        data = data.replace(old.encode(), new.encode())
    return data


def notice(project: Project, plan: Plan) -> bytes:
    """NOTICE with the changed files: the licence asks that they are named."""
    path = project.root / "NOTICE"
    if not path.is_file():
        raise ForkError(f"{path} is missing; the wheel needs it")
    files = [f"  {PACKAGE}/{file}" for file in sorted(plan.changes)]
    text = "\nFiles of SGLang that this package changes:\n" + "\n".join(files)
    return path.read_bytes() + text.encode() + b"\n"


def write_archive(
    path: Path, archive: zipfile.ZipFile, entries: Entries, record: str
) -> None:
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as target:
        # The package first and dist-info last, as the wheel format advises.
        for name in sorted(entries, key=lambda n: (".dist-info/" in n, n)):
            entry = entries[name]
            if isinstance(entry, bytes):
                data, mode = entry, READABLE
            else:
                data, mode = archive.read(entry), entry.external_attr
            add(target, name, data, mode)
            writer.writerow((name, record_hash(data), len(data)))
        writer.writerow((record, "", ""))
        add(target, record, rows.getvalue().encode(), READABLE)


def add(target: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    info = zipfile.ZipInfo(name, TIMESTAMP)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix, so that the mode counts
    info.external_attr = mode
    target.writestr(info, data)
