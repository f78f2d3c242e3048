"""Small models behind real servers on the CPU engine, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collective_counter import RankCounters, read_settled_counters

from scripts.serving import Running, cpu_engine, launch
from scripts.small_model.folder import write_model
from scripts.small_model.spec import ModelSpec

SMALL = ModelSpec(vocab_size=1003)


@dataclass(frozen=True)
class Counted(Running):
    """A running server whose counters can be read."""

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
        env: Mapping[str, str] | None = None,
        fork: Path | None = cpu_engine.FORK,
    ) -> Iterator[Counted]:
        """A running server of `spec` with `args` after the usual ones, and `env`.

        `fork=None` serves the installed SGLang, `num_steps=0` without speculation.
        Raises ServerError when it does not come up.
        """
        scratch = self._folder / f"server{next(self._starts)}"
        chain = cpu_engine.chain_args(num_steps) if num_steps else []
        args = [*cpu_engine.engine_args(tp=tp, dtype=spec.dtype), *chain, *args]
        options = dict(tp=tp, args=args, fork=fork, env=env)
        with launch(self.model(spec), scratch, **options) as running:
            yield Counted(running.server, running.folder)

    def model(self, spec: ModelSpec) -> Path:
        """The folder of a model, made on first use."""
        if spec not in self._models:
            folder = self._folder / f"model{len(self._models)}"
            self._models[spec] = write_model(spec, folder)
        return self._models[spec]
