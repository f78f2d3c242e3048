"""The draft's confidence with pipeline stages: the last one drafts, the first one reports."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from scripts.calibrate.pairs import Pairs, read_pairs
from scripts.families.models import llama
from scripts.families.serve import prompts
from scripts.serving import Completion, complete, cpu_engine, launch
from scripts.serving.arms import FLAG
from scripts.serving.client import get_json

STEPS, TOKENS, STAGES = 3, 24, 2


@dataclass(frozen=True)
class Seen:
    """One server's answers, one at a time, and what it wrote and said of them."""

    answers: list[Completion]
    pairs: Pairs
    state: dict


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("pipelined")
    args = [
        *cpu_engine.engine_args(tp=1),
        *("--pp-size", str(STAGES), "--disable-cuda-graph"),
        *cpu_engine.chain_args(STEPS, "EAGLE"),
        *("--speculative-draft-model-path", str(llama.eagle().write(folder / "draft"))),
        *("--speculative-draft-confidence", FLAG, "on"),
    ]
    env = {
        "SGLANG_ENABLE_PP_SPEC": "1",
        "SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH": str(folder / "pairs" / "run"),
    }
    target = llama.target().write(folder / "target")
    # One binding a rank, whichever way the ranks are split.
    with launch(target, folder, tp=STAGES, args=args, env=env) as running:
        answers = [complete(running.url, prompt, TOKENS) for prompt in prompts()]
        drafted = sum(answer.verify_rounds - 1 for answer in answers)
        pairs = written(folder / "pairs", drafted)
        state = get_json(f"{running.url}/server_info")["internal_states"][0]
    return Seen(answers, pairs, state)


def written(folder: Path, rounds: int) -> Pairs:
    """The pairs of an idle server, which has to have written all of them."""
    pattern = str(folder / "run.*.pt")
    for _ in range(100):
        try:
            pairs = read_pairs(pattern)
            if len(pairs) == rounds:
                return pairs
        except ValueError:
            pass
        time.sleep(0.1)
    return read_pairs(pattern)


def test_all_rounds_but_each_requests_first_are_pairs(seen: Seen) -> None:
    """Red when a round's probabilities are lost between the stages, when the placeholders
    of a first round are taken for drafts, or when the stages write twice."""
    start = 0
    for answer in seen.answers:
        rounds = answer.verify_rounds - 1
        correct = seen.pairs.correct[start : start + rounds]
        start += rounds
        told = np.array((answer.correct_histogram + [0] * STEPS)[: STEPS + 1])
        # The first round's placeholders are never the target's tokens here.
        told[0] -= 1
        assert np.bincount(correct, minlength=STEPS + 1).tolist() == told.tolist()
    assert start == len(seen.pairs)


def test_the_first_stage_reports_what_the_last_one_drafted(seen: Seen) -> None:
    """Red when a request's figures are another's or another round's, or the rounds
    without drafts are left out of what the target ran. Pairs go through a logit in
    FP32: 1e-5."""
    probability, start = 1 / (1 + np.exp(-seen.pairs.logits.astype(float))), 0
    for answer in seen.answers:
        rounds = answer.verify_rounds
        chains = probability[start : start + rounds - 1]
        start += rounds - 1
        assert answer.draft_confidence == pytest.approx(chains.mean(), abs=1e-5)
        lengths = 1 + np.cumprod(chains, axis=1).sum(axis=1)
        mean = (lengths.sum() + 1) / rounds
        assert answer.expected_accept_length == pytest.approx(mean, abs=1e-5)
        assert answer.verified_tokens == rounds * (STEPS + 1)
    assert np.ptp([answer.draft_confidence for answer in seen.answers]) > 1e-3


def test_the_server_says_so(seen: Seen) -> None:
    """Red when a server whose first stage has no draft denies that it collects, or that
    its drafts are dense whatever the flag asks for."""
    assert seen.state["draft_confidence"] == {"collects": True}
    status = {"mode": "on", "path": "dense", "reason": "pipeline_parallel"}
    assert seen.state["vocab_parallel_draft"] == status
    assert 0 < seen.state["avg_spec_draft_confidence"] <= 1
