"""Configurations that the packed path does not serve draft densely, and say why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_arms.arms import (
    NUM_STEPS,
    ON,
    TP,
    Arm,
    Running,
    chain_args,
    draft_status,
    launch,
    status_lines,
    tree_args,
)
from engine_arms.client import ask_all
from engine_arms.eagle3_model import DRAFT_VOCAB, reference_tokens, write_eagle3
from engine_arms.recording import Recording
from engine_arms.scenarios import alone, body, prompts
from scripts.demo.settings import FLAG
from scripts.serving import cpu_engine

FEW = 12
# One candidate more than the packed path sends.
WIDE_TREE = tree_args(topk=17)


@dataclass(frozen=True)
class Fallback:
    """A launch with the flag, and the reason that it has to give."""

    reason: str
    speculation: Sequence[str]
    mode: str = "on"
    tp: int = TP


FALLBACKS = (
    Fallback("not_measured", chain_args(), mode="auto"),
    Fallback("tp1", chain_args(), tp=1),
    Fallback("topk", WIDE_TREE),
)


def assert_dense(running: Running, mode: str, reason: str) -> None:
    """One log line with the reason, and the same in `/server_info`."""
    status = draft_status(running.url)
    note = status.pop("note", None)
    assert status == {"mode": mode, "path": "dense", "reason": reason}
    assert (note is not None) == (reason == "not_measured")
    (line,) = status_lines(running.server.log_text())
    end = f"mode={mode}, path=dense, reason={reason}"
    assert line.endswith(end if note is None else f"{end}, note={note}")


@pytest.mark.parametrize("fallback", FALLBACKS, ids=lambda f: f.reason)
def test_falls_back(dense: Recording, fallback: Fallback, tmp_path: Path) -> None:
    """Red when the launch fails, drafts on the packed path, gives another reason, says
    it twice or not at all, or answers differently."""
    arm = Arm(fallback.reason, cpu_engine.FORK, (FLAG, fallback.mode))
    options: dict[str, Any] = {"tp": fallback.tp, "speculation": fallback.speculation}
    bodies = [body(item["input_ids"], {"max_new_tokens": FEW}) for item in alone()]
    with launch(arm, tmp_path, **options) as running:
        answers = ask_all(running.url, bodies, concurrency=2)
        assert_dense(running, fallback.mode, fallback.reason)
    assert [a["output_ids"] for a in answers] == [i[:FEW] for i in dense.ids("alone")]


def test_a_reduced_draft_vocabulary_is_packed(tmp_path: Path) -> None:
    """Red when EAGLE3 with a reduced draft vocabulary drafts densely, takes the
    target's vocabulary for its own, or when its answers are not the target's own."""
    target, draft = write_eagle3(tmp_path / "models")
    speculation = cpu_engine.chain_args(NUM_STEPS, algorithm="EAGLE3")
    speculation += ["--speculative-draft-model-path", str(draft)]
    questions = prompts(2, 16, seed=1)
    arm = Arm("eagle3", cpu_engine.FORK, ON)
    with launch(arm, tmp_path, model=target, speculation=speculation) as running:
        bodies = [body(question, {"max_new_tokens": FEW}) for question in questions]
        answers = ask_all(running.url, bodies, concurrency=2)
        status = draft_status(running.url)
    assert (status["path"], status["vocab_size"]) == ("packed", DRAFT_VOCAB)
    torch.set_num_threads(2)
    expected = [reference_tokens(target, question, FEW) for question in questions]
    assert [answer["output_ids"] for answer in answers] == expected
