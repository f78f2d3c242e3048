"""Raw records on disk: one JSON file a run, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from scripts.ab.plan import Point, Start

PLAN = "plan.json"
CHECK = "check"
ATTEMPT = "attempt"


def now() -> str:
    """UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


class Records:
    """The folder `raw` of one comparison."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.raw = out / "raw"

    def open(self, plan: dict[str, Any], fresh: bool) -> bool:
        """Begin, or go on with, the comparison that `plan` describes; True when earlier
        runs are kept. ValueError when the folder holds runs of another plan."""
        if fresh and self.raw.exists():
            shutil.rmtree(self.raw)
        kept = self.plan()
        if kept is None:
            write_json(self.raw / PLAN, plan)
            return False
        differing = sorted(key for key in kept | plan if kept.get(key) != plan.get(key))
        if differing:
            raise ValueError(
                f"--out {self.out}: raw/ holds runs with other settings "
                f"({', '.join(differing)}); use --fresh to drop them or another --out"
            )
        return any(self.raw.glob("*/*.json"))

    def plan(self) -> dict[str, Any] | None:
        """The plan that the runs belong to."""
        return read_json(self.raw / PLAN)

    def folder(self, start: Start) -> Path:
        """Where the records of a server start are."""
        return self.raw / start.folder

    def path(self, start: Start, name: str) -> Path:
        return self.folder(start) / f"{name}.json"

    def name(self, path: Path) -> str:
        """A record's path as the report gives it."""
        return path.relative_to(self.out).as_posix()

    def read(self, start: Start, name: str) -> dict[str, Any] | None:
        """A record; None when it was not made."""
        return read_json(self.path(start, name))

    def write(self, start: Start, name: str, record: dict[str, Any]) -> None:
        write_json(self.path(start, name), record)

    def missing(self, start: Start, points: list[Point]) -> list[Point]:
        """The runs of a start that were not made yet."""
        return [p for p in points if not self.path(start, p.name).exists()]

    def complete(self, start: Start, points: list[Point]) -> bool:
        """Whether nothing of a start is left to do."""
        checked = self.path(start, CHECK).exists()
        return checked and not self.missing(start, points)

    def attempts(self, start: Start) -> list[dict[str, Any]]:
        """Every server that was launched for a start."""
        found = sorted(self.folder(start).glob(f"{ATTEMPT}-*.json"))
        return [json.loads(path.read_text()) for path in found]


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file's content, None when there is no such file."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Replace a JSON file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(data, indent=1) + "\n")
    partial.replace(path)


def digest(data: Any) -> str:
    """A short name for plain data."""
    text = json.dumps(data, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
