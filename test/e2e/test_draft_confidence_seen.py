"""What a user sees of the draft's confidence, against the pairs that the server wrote."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from scripts.calibrate.inputs import TWO_CLASSES
from scripts.calibrate.pairs import Pairs, read_pairs
from scripts.serving import Completion, complete
from scripts.serving.arms import FLAG
from scripts.serving.client import get_json
from scripts.small_model.folder import make_prompts
from scripts.small_model.serve import SmallServers

NUM_STEPS = 3
TOKENS = 24
KINDS = ("easy", "hard")


@dataclass(frozen=True)
class Seen:
    """One server: its answers in order, one at a time, and what it showed of them."""

    answers: dict[str, list[Completion]]
    pairs: Pairs
    state: dict
    metrics: str

    @property
    def in_order(self) -> list[Completion]:
        return [answer for kind in KINDS for answer in self.answers[kind]]


@pytest.fixture(scope="module")
def seen(servers: SmallServers, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    stem = tmp_path_factory.mktemp("pairs") / "run"
    # The gauges then show the last verify alone.
    args = ["--speculative-draft-confidence", "--enable-metrics", FLAG, "on"]
    args += ["--decode-log-interval", "1"]
    env = {"SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH": str(stem)}
    with servers.launch(
        spec=TWO_CLASSES, num_steps=NUM_STEPS, args=args, env=env
    ) as running:
        answers = {
            kind: [
                complete(running.url, prompt, TOKENS)
                for prompt in make_prompts(TWO_CLASSES, 3, 16, seed=3, kind=kind)
            ]
            for kind in KINDS
        }
        rounds = sum(c.verify_rounds for c in answers["easy"] + answers["hard"])
        pairs = written(stem, rounds)
        state = get_json(f"{running.url}/server_info")["internal_states"][0]
        with urllib.request.urlopen(f"{running.url}/metrics", timeout=30) as response:
            metrics = response.read().decode()
    return Seen(answers, pairs, state, metrics)


def written(stem: Path, rounds: int) -> Pairs:
    """The pairs of an idle server, which has to have written all of them."""
    for _ in range(100):
        try:
            pairs = read_pairs(f"{stem}.*.pt")
            if len(pairs) == rounds:
                break
        except ValueError:
            pass
        time.sleep(0.1)
    return read_pairs(f"{stem}.*.pt")


def by_request(seen: Seen) -> Iterator[tuple[Completion, np.ndarray, np.ndarray]]:
    """Each answer with its probabilities `[verifies, steps]` and its correct drafts."""
    start = 0
    probability = 1 / (1 + np.exp(-seen.pairs.logits))
    for answer in seen.in_order:
        rows = slice(start, start + answer.verify_rounds)
        yield answer, probability[rows], seen.pairs.correct[rows]
        start = rows.stop
    assert start == len(seen.pairs)


def expected_lengths(probability: np.ndarray) -> np.ndarray:
    return 1 + np.cumprod(probability, axis=1).sum(axis=1)


def test_every_verify_is_written(seen: Seen) -> None:
    """Red when a short run loses pairs, when a padding row is among them, or when an
    outcome is not the accept length's."""
    assert len(seen.pairs) == sum(c.verify_rounds for c in seen.in_order)
    assert set(seen.pairs.widths) == {NUM_STEPS}
    for answer, _, correct in by_request(seen):
        histogram = np.bincount(correct, minlength=NUM_STEPS + 1).tolist()
        told = answer.correct_histogram + [0] * NUM_STEPS
        assert told[: NUM_STEPS + 1] == histogram


def test_response(seen: Seen) -> None:
    """Red when a request's means are not those of its own verifies. Pairs go through a
    logit in FP32: 1e-5."""
    for answer, probability, _ in by_request(seen):
        assert answer.draft_confidence == pytest.approx(probability.mean(), abs=1e-5)
        length = expected_lengths(probability).mean()
        assert answer.expected_accept_length == pytest.approx(length, abs=1e-5)
        assert answer.verified_tokens == answer.verify_rounds * (NUM_STEPS + 1)


def test_confidence_tells_the_classes_apart(seen: Seen) -> None:
    """Red when the probability that is shown has nothing to do with acceptance."""
    easy, hard = (
        np.mean([(c.draft_confidence, c.accept_length) for c in seen.answers[kind]], 0)
        for kind in KINDS
    )
    assert easy[0] > hard[0] + 0.1
    assert easy[1] > hard[1] + 0.5


def test_server_info(seen: Seen) -> None:
    """Red when the server's averages are those of an interval, or of one request, or
    it does not say that it collects."""
    assert seen.state["draft_confidence"] == {"collects": True}
    probability = 1 / (1 + np.exp(-seen.pairs.logits))
    confidence = seen.state["avg_spec_draft_confidence"]
    assert confidence == pytest.approx(probability.mean(), abs=1e-5)
    length = seen.state["avg_spec_expected_accept_length"]
    assert length == pytest.approx(expected_lengths(probability).mean(), abs=1e-5)
    assert seen.state["avg_spec_accept_length"] > 1.0


@pytest.mark.parametrize(
    "name", ["spec_draft_confidence", "spec_expected_accept_length"]
)
def test_metrics(seen: Seen, name: str) -> None:
    """Red when a gauge is missing, or shows anything but its interval: one verify."""
    last = 1 / (1 + np.exp(-seen.pairs.logits[-1:]))
    wanted = {
        "spec_draft_confidence": last.mean(),
        "spec_expected_accept_length": expected_lengths(last)[0],
    }
    line = rf"^sglang:{name}{{[^}}]*tp_rank=\"0\"[^}}]*}} (\S+)$"
    (value,) = re.findall(line, seen.metrics, re.MULTILINE)
    assert float(value) == pytest.approx(wanted[name], abs=1e-5)
