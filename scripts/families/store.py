"""Results on disk: one file a family and arm, kept while nothing that made it changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from scripts.serving import cpu_engine

from .serve import Served

# What a result depends on.
SOURCES = (
    *("python/sglang/srt", "python/sglang/kernels", "python/edits"),
    *("python/cpu_engine", "python/collective_counter"),
    *("scripts/families/models", "scripts/families/catalog.py"),
    *("scripts/families/serve.py", "scripts/serving", "scripts/small_model"),
)
MODEL_SOURCES = ("scripts/families/models", "scripts/small_model")
SUFFIXES = {".py", ".toml"}


def fingerprint(root: Path = cpu_engine.ROOT, sources: Sequence[str] = SOURCES) -> str:
    """Of this repository's sources that a family's result depends on."""
    digest = hashlib.sha256()
    for source in sources:
        for path in sorted([root / source, *(root / source).rglob("*")]):
            if path.suffix in SUFFIXES and path.is_file():
                digest.update(path.relative_to(root).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


class Store:
    """Results below a folder, of sources with one fingerprint."""

    def __init__(self, folder: Path, sources: str) -> None:
        self._folder = folder
        self._sources = sources

    def folder(self, family: str, flag: str) -> Path:
        """Where an arm's server keeps its log."""
        return self._folder / family / flag

    def load(self, family: str, flag: str) -> Served | None:
        """A kept result; None when there is none of these sources."""
        try:
            saved = json.loads(self._file(family, flag).read_text())
        except (FileNotFoundError, ValueError):
            return None
        if saved.get("sources") != self._sources:
            return None
        return Served.from_json(saved["served"])

    def save(self, family: str, flag: str, served: Served) -> None:
        """Keep a result; whole as soon as it is there."""
        path = self._file(family, flag)
        path.parent.mkdir(parents=True, exist_ok=True)
        saved = {"sources": self._sources, "served": served.to_json()}
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(saved))
        scratch.replace(path)

    def _file(self, family: str, flag: str) -> Path:
        return self.folder(family, flag) / "served.json"
