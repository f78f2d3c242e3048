"""Where things are in the repository, and the one error type of the tool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class ForkError(Exception):
    """A refusal; its text says what is wrong and what to do about it."""

    @classmethod
    def of(cls, problems: list[str]) -> ForkError:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        return cls("\n".join([*problems, count]))


@dataclass(frozen=True)
class Project:
    """Paths of one repository of new files and edits."""

    root: Path = REPOSITORY

    @property
    def new_files(self) -> Path:
        return self.root / "python" / "sglang"

    @property
    def edits(self) -> Path:
        return self.root / "python" / "edits"

    @property
    def lock(self) -> Path:
        return self.edits / "lock.json"

    @property
    def pins(self) -> Path:
        return self.root / "scripts" / "fork" / "pins.toml"

    @property
    def allowed_repeats(self) -> Path:
        return self.root / "scripts" / "fork" / "allowed_repeats.toml"

    @property
    def build(self) -> Path:
        return self.root / "build"

    def name(self, path: Path) -> str:
        """`path` relative to the repository where it lies inside it."""
        path = Path(path)
        if path.is_relative_to(self.root):
            return path.relative_to(self.root).as_posix()
        return str(path)
