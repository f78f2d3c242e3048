"""Without the flag the fork is stock SGLang."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from collective_counter.table import MEASURES, SCOPES

from engine_arms.arms import SUPPORT, status_lines
from engine_arms.compare import differences, events_of
from engine_arms.recording import COUNTED, Recording
from engine_arms.scenarios import SCENARIOS

# Kinds whose number depends on time: the scheduler's idle loop broadcasts.
TIMED = "broadcast"
_IMPORTS = """
import sglang.srt.managers.scheduler
import sglang.srt.speculative.eagle_worker_v2
from draft_recorder.plugin import packed_modules
print(packed_modules())
"""


@pytest.mark.parametrize("name", [s.name for s in SCENARIOS])
def test_same_answers_as_stock(stock: Recording, dense: Recording, name: str) -> None:
    """Red when a default launch of the fork answers anything differently."""
    assert stock.answers[name]
    assert differences(dense.answers[name], stock.answers[name]) == []


def test_same_draft_steps_as_stock(stock: Recording, dense: Recording) -> None:
    """Red when a default launch drafts anything differently, in any bit."""
    for scenario in SCENARIOS:
        if scenario.concurrency == 1:
            ours, theirs = (
                events_of(arm.events[0], scenario.name) for arm in (dense, stock)
            )
            assert ours and ours == theirs


def test_same_collectives_as_stock(stock: Recording, dense: Recording) -> None:
    """Red when a default launch adds, drops or resizes a collective, anywhere."""
    assert COUNTED[0] == "alone"
    pairs = zip(stock.counters["alone"], dense.counters["alone"], strict=True)
    for theirs, ours in pairs:
        assert sum(ours.calls("draft_logits").values()) > 0
        for scope in SCOPES:
            kinds = (ours.calls(scope).keys() | theirs.calls(scope).keys()) - {TIMED}
            for kind in kinds:
                for measure in MEASURES:
                    count = ours.get(scope, kind, measure)
                    assert count == theirs.get(scope, kind, measure), (scope, kind)


def test_says_nothing(dense: Recording) -> None:
    """Red when the flag's default logs or reports anything."""
    assert dense.status is None
    assert status_lines(dense.log) == []


def test_loads_nothing(dense: Recording, packed: Recording) -> None:
    """Red when a rank that runs without the flag has imported a module of the packed
    path. The packed arm shows that the check sees them."""
    for rank in dense.events:
        assert rank and all(event.packed_modules == [] for event in rank)
    layer = "sglang.srt.layers.vocab_parallel_draft"
    for rank in packed.events:
        assert all(layer in event.packed_modules for event in rank)


def test_imports_nothing() -> None:
    """Red when the edited upstream modules import the packed path by themselves."""
    path = os.pathsep.join([str(SUPPORT), os.environ["PYTHONPATH"]])
    result = subprocess.run(
        [sys.executable, "-c", _IMPORTS],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1] == "[]"
