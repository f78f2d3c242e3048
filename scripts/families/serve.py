"""Serves a family once and keeps what it answered and exchanged."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from collective_counter import draft_figures, read_settled_counters, subtract

from scripts.serving import (
    Completion,
    ServerError,
    complete,
    complete_all,
    cpu_engine,
    launch,
)

from .catalog import FLAG, Builder, Family
from .models import VOCAB

# No server here takes half as long, also on two busy cores.
READY_S, REQUEST_S = 240.0, 120.0
CONCURRENCY = 4


@dataclass(frozen=True)
class Exchange:
    """Vocabulary collectives of the draft over all one-at-a-time requests, per rank.

    `steps` counts runs of a draft head, `output_bytes` what their gathers returned.
    """

    steps: int
    collectives: int
    output_bytes: int
    ranks_agree: bool

    @property
    def bytes_per_step(self) -> float:
        """0 when nothing was drafted."""
        return self.output_bytes / self.steps if self.steps else 0.0


@dataclass(frozen=True)
class Served:
    """Answers one by one and all at once, the draft path, and what was exchanged."""

    alone: list[Completion]
    together: list[Completion]
    status: dict[str, Any] | None
    exchange: Exchange

    @property
    def answers(self) -> list[Completion]:
        """All of them."""
        return self.alone + self.together

    @property
    def ids(self) -> list[list[int]]:
        """Output ids of all answers."""
        return [answer.output_ids for answer in self.answers]

    def to_json(self) -> dict[str, Any]:
        """For `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Served:
        """The reverse of `to_json`."""
        return cls(
            alone=[Completion(**answer) for answer in saved["alone"]],
            together=[Completion(**answer) for answer in saved["together"]],
            status=saved["status"],
            exchange=Exchange(**saved["exchange"]),
        )


def prompts() -> list[list[int]]:
    """Short of the longest by 5 tokens each, so that a batch is ragged."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(0, VOCAB - 100, (31 - 5 * i,), generator=generator).tolist()
        for i in range(CONCURRENCY)
    ]


class Kitchen:
    """Writes each model once, below a folder of their own, and serves it."""

    def __init__(self, models: Path) -> None:
        self._models = models

    def model(self, build: Builder) -> Path:
        """The folder of a model, written when it is not there yet."""
        name = f"{build.__module__.rpartition('.')[2]}-{build.__name__}"
        path = self._models / name
        if not (path / "config.json").is_file():
            build().write(path)
        return path

    def family(self, family: Family, flag: str, folder: Path) -> Served:
        """The family with the flag at `flag`; log and counters go to `folder`.

        Raises ServerError when it is not served, RequestFailed for its first request.
        """
        draft = None if family.draft is None else self.model(family.draft)
        args = [*family.speculation(draft), FLAG, flag]
        return self.serve(family.target, family.tp, args, family.tokens, folder)

    def serve(
        self,
        target: Builder,
        tp: int,
        args: Sequence[str],
        tokens: int,
        folder: Path,
    ) -> Served:
        """As `family`, for any server of `target`."""
        options = dict(tp=tp, args=[*_engine_args(tp), *args])
        path = self.model(target)
        with launch(path, folder, ready_timeout_s=READY_S, **options) as running:

            def ask(concurrency: int) -> list[Completion]:
                asked = (running.url, prompts(), tokens, concurrency)
                done = complete_all(*asked, timeout_s=REQUEST_S)
                for answer in done:
                    if answer.error:
                        running.server.check_alive()
                        raise ServerError(f"a request failed: {answer.error}")
                return done

            # Ranks have no counters until they have communicated.
            complete(running.url, prompts()[0], 4, REQUEST_S)
            before = read_settled_counters(running.counter_dir)
            alone = ask(1)
            after = read_settled_counters(running.counter_dir)
            figures = draft_figures(subtract(after, before))
            together = ask(CONCURRENCY)
            status = running.draft_status()
        exchange = Exchange(
            figures.steps,
            figures.collectives,
            figures.output_bytes,
            figures.ranks_agree,
        )
        return Served(alone, together, status, exchange)


def _engine_args(tp: int) -> list[str]:
    # The state pool of linear attention is sized from free memory.
    state = ("--max-mamba-cache-size", "32")
    return [*cpu_engine.engine_args(tp=tp), *state, "--disable-cuda-graph"]
