"""A server with as little of this repository on its path as a host without a GPU allows.

Which files it loaded is read from what `PYTHONVERBOSE=1` prints: the interpreter's own
word, that needs no file of ours in the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.serving import cpu_engine
from scripts.serving.ports import free_port
from scripts.serving.server import Server, ServerCommand
from scripts.small_model.folder import write_model
from scripts.small_model.spec import ModelSpec

VERBOSE = {"PYTHONVERBOSE": "1"}
# Compiled file that fits its source, a source that was compiled, an extension module.
# Processes write into one log, so that a line may begin inside another one.
_END = r"(?=['\s#]|$)"
_LINES = (
    re.compile(r"\.pyc matches (/[^'#\n]+?\.py)" + _END),
    re.compile(r"# code object from '?(/[^'#\n]+?\.py)" + _END),
    re.compile(r"# extension module '[\w.]+' loaded from '(/[^'#\n]+?)'"),
)
TP, NUM_STEPS = 2, 3
# A width that TP2 does not divide.
SPEC = ModelSpec(vocab_size=1003)
OURS = cpu_engine.ROOT / "python"
# The modules of the feature, which a server with the flag off does not import.
FEATURE = frozenset(
    path.relative_to(OURS).as_posix()
    for path in (OURS / "sglang").rglob("*.py")
    if "test" not in path.relative_to(OURS).parts
)


def loaded_files(log: str) -> set[Path]:
    """Every file that the processes behind `log` loaded as a module."""
    return {Path(path) for line in _LINES for path in line.findall(log)}


@dataclass(frozen=True)
class Roots:
    """Where modules may come from. `tree` holds `sglang`, `stand_ins` holds the CPU
    engine, `environment` Python and the installed packages."""

    tree: Path
    stand_ins: Path
    environment: tuple[Path, ...]
    repository: Path

    def strays(self, files: Iterable[Path]) -> list[str]:
        """Files that a server of the tree must not load: of this repository, or of an
        SGLang that is not the tree's."""
        return sorted(str(file) for file in files if self._stray(file))

    def _stray(self, file: Path) -> bool:
        if within(file, self.tree) or within(file, self.stand_ins):
            return False
        for root in self.environment:
            if within(file, root):
                inside = file.as_posix().rpartition("-packages/")[2]
                return inside.startswith("sglang/")
        return within(file, self.repository)


def within(file: Path, folder: Path) -> bool:
    return file.is_relative_to(folder)


def feature_files(files: Iterable[Path], tree: Path) -> list[str]:
    """The feature's modules among `files`, relative to the tree."""
    inside = {file.relative_to(tree).as_posix() for file in files if within(file, tree)}
    return sorted(inside & FEATURE)


@contextmanager
def bare_server(
    log: Path, model: Path, path: Sequence[Path], flags: Sequence[str]
) -> Iterator[Server]:
    """A running MTP server of `SPEC` at TP2 with `path` and the CPU engine's stand-ins on
    its path. Raises ServerError when it does not come up."""
    command = ServerCommand(
        model_path=write_model(SPEC, model),
        args=[
            *cpu_engine.engine_args(tp=TP),
            *cpu_engine.chain_args(NUM_STEPS),
            *flags,
        ],
        port=free_port(),
        log_path=log,
        # Without the working directory, which `-m` would put first.
        env=cpu_engine.environment(TP) | VERBOSE | {"PYTHONSAFEPATH": "1"},
        python_path=[*path, cpu_engine.CPU_ENGINE],
    )
    with Server(command) as server:
        yield server
