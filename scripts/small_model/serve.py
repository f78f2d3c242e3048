"""Small models behind real servers on the CPU engine, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collective_counter import RankCounters, read_settled_counters

from scripts.serving import Server, ServerCommand, cpu_engine, free_port
from scripts.small_model.folder import write_model
from scripts.small_model.spec import ModelSpec

SMALL = ModelSpec(vocab_size=1003)


@dataclass(frozen=True)
class Running:
    """A server that answers, with the folder of its collective counters."""

    server: Server
    model_path: Path
    counter_dir: Path

    @property
    def url(self) -> str:
        """Address of the server, without a path."""
        return self.server.url

    def counters(self) -> list[RankCounters]:
        """A snapshot of every rank once its draft steps have come to rest."""
        return read_settled_counters(self.counter_dir)


class SmallServers:
    """Starts servers one after another; models are made once per spec."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[ModelSpec, Path] = {}
        self._starts = itertools.count()

    @contextmanager
    def launch(
        self,
        *,
        spec: ModelSpec = SMALL,
        tp: int = 2,
        num_steps: int = 3,
        args: Sequence[str] = (),
        fork: Path | None = cpu_engine.FORK,
    ) -> Iterator[Running]:
        """A running server of `spec` with `args` after the usual ones.

        `fork=None` serves the installed SGLang, `num_steps=0` without speculation.
        Raises ServerError when it does not come up.
        """
        scratch = self._folder / f"server{next(self._starts)}"
        chain = cpu_engine.chain_args(num_steps) if num_steps else []
        command = ServerCommand(
            model_path=self.model(spec),
            args=[*cpu_engine.engine_args(tp=tp, dtype=spec.dtype), *chain, *args],
            port=free_port(),
            log_path=scratch / "server.log",
            env=cpu_engine.environment(tp, scratch / "counters"),
            python_path=cpu_engine.python_path(fork),
        )
        with Server(command) as server:
            yield Running(server, command.model_path, scratch / "counters")

    def model(self, spec: ModelSpec) -> Path:
        """The folder of a model, made on first use."""
        if spec not in self._models:
            folder = self._folder / f"model{len(self._models)}"
            self._models[spec] = write_model(spec, folder)
        return self._models[spec]
