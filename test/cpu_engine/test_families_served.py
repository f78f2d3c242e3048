"""Every draft family through the real server: speculation must not change a token.

What the stand-ins have to get right beyond the chain of an MTP model is exercised here:
trees, reduced draft vocabularies, latent attention, sliding windows with sinks, linear
attention. The flag is on, so that each family shows its draft path too. The reference
is the same target, served without speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean

import pytest
import torch
from scripts.families.models import FAMILIES, VOCAB, Model

from scripts.serving import (
    Completion,
    Server,
    ServerCommand,
    complete_all,
    cpu_engine,
    free_port,
)
from scripts.serving.client import get_json

TOKENS = 40
# Below 1.2 nearly nothing is accepted, and equal outputs would say little.
LEAST_ACCEPT_LENGTH = 1.2


class Served:
    """Writes models once, serves them and keeps what targets answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: dict[Callable[[], Model], Path] = {}
        self.status: dict[str, str] | None = None
        self.answers: dict[Callable[[], Model], list[list[int]]] = {}
        generator = torch.Generator().manual_seed(0)
        # Short of the longest prompt by 5 each, so that a batch is ragged.
        self.prompts = [
            torch.randint(0, VOCAB - 100, (31 - 5 * i,), generator=generator).tolist()
            for i in range(4)
        ]

    def path(self, build: Callable[[], Model]) -> Path:
        if build not in self.paths:
            self.paths[build] = build().write(self.folder / f"model{len(self.paths)}")
        return self.paths[build]

    def run(
        self, build: Callable[[], Model], tp: int, args: Sequence[str]
    ) -> list[Completion]:
        """Answers to the prompts one by one, then to all at once."""
        port = free_port()
        command = ServerCommand(
            model_path=self.path(build),
            args=[
                *cpu_engine.engine_args(tp=tp),
                # The state pool of linear attention is sized from free memory.
                *("--max-mamba-cache-size", "32"),
                "--disable-cuda-graph",
                *args,
            ],
            port=port,
            log_path=self.folder / f"server{port}.log",
            env=cpu_engine.environment(tp),
            python_path=cpu_engine.python_path(),
        )
        with Server(command) as server:
            alone = complete_all(server.url, self.prompts, TOKENS, 1)
            together = complete_all(server.url, self.prompts, TOKENS, 4)
            state = get_json(f"{server.url}/server_info")["internal_states"][0]
            self.status = state.get("vocab_parallel_draft")
        assert [c.error for c in alone + together] == [None] * 8
        return alone + together

    def reference(self, build: Callable[[], Model]) -> list[list[int]]:
        if build not in self.answers:
            done = self.run(build, tp=1, args=[])
            self.answers[build] = [c.output_ids for c in done]
        return self.answers[build]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("families"))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_speculation_changes_no_token(served: Served, name: str) -> None:
    """Red if a draft's or a verify's attention, mask, window or state is wrong for the
    family, or its drafts wrong: at TP 2 with speculation, other tokens than at TP 1
    without, or hardly one accepted. Red too if its draft path or its reason changes."""
    family = FAMILIES[name]
    expected = served.reference(family.target)
    assert min(len(set(ids)) for ids in expected) > TOKENS // 4, "degenerate outputs"
    draft = None if family.draft is None else str(served.path(family.draft))
    done = served.run(family.target, tp=2, args=family.args(draft))
    assert [c.output_ids for c in done] == expected
    assert mean(c.accept_length for c in done) > LEAST_ACCEPT_LENGTH
    assert served.status["path"] == ("dense" if family.reason else "packed")
    assert served.status.get("reason") == family.reason
