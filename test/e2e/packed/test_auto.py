"""`auto` with a table: some row counts packed, the others dense, in one server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from draft_recorder.events import CHAIN, EXTEND, SEED

from engine_arms.arms import TP, Arm
from engine_arms.compare import (
    chain_faults,
    compare_forwards,
    differences,
    events_of,
    extend_faults,
    rank_faults,
)
from engine_arms.recording import Recording, record
from engine_arms.scenarios import named
from scripts.demo.settings import FLAG
from scripts.serving import cpu_engine
from sglang.srt.layers.vocab_parallel_draft_table import (
    SCHEMA,
    VARIABLE,
    device_name,
)

# One request's seed, draft step and draft extend (4 rows) go packed, a full batch's
# draft steps and draft extends do not.
PACKED_ROWS = range(1, 5)
NAMES = ("alone", "together")
WIDTH = 512


def write_table(path: Path) -> Path:
    """A table that says that packed wins for `PACKED_ROWS`. Its times are made up."""
    fast, slow = ({"p10": t, "median": t, "p90": t} for t in (1, 9))
    setting = {"transport": "gloo", "world_size": TP, "dtype": "float32"}
    setting |= {"device": device_name("cpu"), "width": WIDTH}
    rows = [
        {"rows": n, "dense_us": slow, "packed_us": fast if n in PACKED_ROWS else slow}
        for n in (1, 2, 4, 5, 64)
    ]
    measurement = {"setting": setting, "versions": {}, "rows": rows}
    path.write_text(json.dumps({"schema": SCHEMA, "measurements": [measurement]}))
    return path


@pytest.fixture(scope="module")
def auto(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("auto")
    env = {VARIABLE: str(write_table(folder / "table.json"))}
    arm = Arm("auto", cpu_engine.FORK, (FLAG, "auto"), env)
    return record(arm, folder, scenarios=named(NAMES), disturbed=False)


def test_status(auto: Recording) -> None:
    """Red when the server does not say which rows go packed, and by which table."""
    assert auto.status["path"] == "packed" and auto.status["packed_rows"] == "1 to 4"
    assert f"measured at width {WIDTH}" in auto.status["note"]


@pytest.mark.parametrize("site", [SEED, CHAIN, EXTEND])
def test_row_counts_choose_the_path(auto: Recording, site: str) -> None:
    """Red when a forward takes the path that its row count does not have."""
    forwards = [f for e in auto.events[0] if e.site == site for f in e.forwards]
    # The recorder counts equally probable tokens of dense rows only.
    packed = {len(f.token_ids): not any(f.equal_best) for f in forwards}
    assert all(is_packed == (n in PACKED_ROWS) for n, is_packed in packed.items())
    # Both paths were taken; a seed has one row a request, few enough to be packed.
    assert set(packed.values()) >= ({True} if site == SEED else {True, False})


@pytest.mark.parametrize("name", NAMES)
def test_same_answers(dense: Recording, auto: Recording, name: str) -> None:
    """Red when an answer depends on which path a batch's row count took."""
    assert differences(auto.answers[name], dense.answers[name]) == []


@pytest.mark.parametrize("name", NAMES)
def test_draft_steps(dense: Recording, auto: Recording, name: str) -> None:
    """Red when tokens or positions of a step get lost where the path changes."""
    assert rank_faults(auto.events, name) == []
    events = events_of(auto.events[0], name)
    assert chain_faults(events) == [] and extend_faults(events) == []
    if name == "alone":
        theirs = events_of(dense.events[0], name)
        assert compare_forwards(theirs, events).faults == []
