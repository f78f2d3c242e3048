"""One server on the CPU engine, with a folder for its log and its counters.

The tests and `make families` start theirs here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.serving import cpu_engine
from scripts.serving.client import get_json
from scripts.serving.ports import free_port
from scripts.serving.server import Server, ServerCommand


@dataclass(frozen=True)
class Running:
    """A server that answers, and the folder that it was given."""

    server: Server
    folder: Path

    @property
    def url(self) -> str:
        """Address without a path."""
        return self.server.url

    @property
    def model_path(self) -> Path:
        """The model that it serves."""
        return self.server.command.model_path

    @property
    def counter_dir(self) -> Path:
        """Where its ranks keep their collective counters."""
        return self.folder / "counters"

    def draft_status(self) -> dict[str, Any] | None:
        """What `/server_info` says about the draft path; None when nothing."""
        info = get_json(f"{self.url}/server_info")
        return info["internal_states"][0].get("vocab_parallel_draft")


def server_command(
    model_path: Path,
    folder: Path,
    *,
    tp: int,
    args: Sequence[str],
    fork: Path | None = cpu_engine.FORK,
    plugins: Sequence[Path] = (),
    env: Mapping[str, str] | None = None,
    port: int | None = None,
) -> ServerCommand:
    """The command line and environment that `launch` starts.

    `fork=None` serves the installed SGLang. `plugins` are more folders of
    `PYTHONPATH`, `env` more variables.
    """
    return ServerCommand(
        model_path=model_path,
        args=list(args),
        port=port or free_port(),
        log_path=folder / "server.log",
        env=cpu_engine.environment(tp, folder / "counters") | dict(env or {}),
        python_path=[*cpu_engine.python_path(fork), *plugins],
    )


@contextmanager
def launch(
    model_path: Path, folder: Path, *, ready_timeout_s: float = 300.0, **options: Any
) -> Iterator[Running]:
    """A running server; `options` are those of `server_command`.

    Counters that an earlier server left in `folder` are removed. Raises ServerError
    when it does not come up.
    """
    for stale in (folder / "counters").glob("*"):
        stale.unlink()
    command = server_command(model_path, folder, **options)
    with Server(command, ready_timeout_s) as server:
        yield Running(server, folder)
