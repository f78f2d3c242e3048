"""An adaptive number of steps, dense against packed: states are swapped many times."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from draft_recorder.events import CHAIN

from engine_arms.arms import NUM_STEPS
from engine_arms.compare import (
    chain_faults,
    compare_forwards,
    differences,
    events_of,
    extend_faults,
    rank_faults,
)
from engine_arms.recording import Recording
from engine_arms.scenarios import ADAPTIVE_NAMES as NAMES

# The steps follow the last few verifications closely, so that they change often.
CONFIG = {
    "ema_alpha": 0.7,
    "update_interval": 1,
    "warmup_batches": 0,
    "1": {"candidate_steps": [1, 2, NUM_STEPS, 5]},
    "4": {"candidate_steps": [1, NUM_STEPS]},
}


@pytest.fixture(scope="module")
def off(adaptive: Callable[..., Recording]) -> Recording:
    return adaptive("adaptive", "off", CONFIG)


@pytest.fixture(scope="module")
def on(adaptive: Callable[..., Recording]) -> Recording:
    return adaptive("adaptive", "on", CONFIG)


def widths(recording: Recording, name: str) -> list[int]:
    """Tokens of each draft chain of a scenario, in order."""
    events = events_of(recording.events[0], name)
    return [len(event.token_ids[0]) for event in events if event.site == CHAIN]


def test_steps_change(off: Recording, on: Recording) -> None:
    """Red when nothing is swapped, so that equal answers would show nothing."""
    assert on.status["path"] == "packed" and off.status is None
    for arm in (off, on):
        swaps = re.findall(
            r"Switch adaptive runtime state: steps \d+ -> (\d+)", arm.log
        )
        assert len(swaps) > 10
        assert {"1", "2", str(NUM_STEPS)} <= set(swaps)
        assert len(set(widths(arm, "alone"))) >= 3


def test_same_answers_one_at_a_time(off: Recording, on: Recording) -> None:
    """Red when tokens, accept lengths, histograms or the steps chosen differ."""
    assert differences(on.answers["alone"], off.answers["alone"]) == []
    assert widths(on, "alone") == widths(off, "alone")


def test_same_tokens_together(off: Recording, on: Recording) -> None:
    """Red when a swap under concurrent requests loses a token. How requests met, and
    so the steps of each, is not the same in two runs."""
    assert on.ids("together") == off.ids("together")


def test_forwards_agree(off: Recording, on: Recording) -> None:
    """Red when a draft forward after a swap gets another token, position or result."""
    pair = (events_of(arm.events[0], "alone") for arm in (off, on))
    selection = compare_forwards(*pair)
    assert selection.rows > 0 and selection.faults == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_of_another_state(on: Recording, name: str) -> None:
    """Red when a token goes to a column, or a position to a batch, of the old state."""
    events = events_of(on.events[0], name)
    assert chain_faults(events) == [] and extend_faults(events) == []
    assert rank_faults(on.events, name) == []
