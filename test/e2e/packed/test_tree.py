"""Draft trees: four candidates a row, packed against dense."""

from __future__ import annotations

import pytest
from collective_counter import draft_figures
from draft_recorder.events import CHAIN, EXTEND, SEED

from engine_arms.arms import ARMS, NUM_STEPS, TP, tree_args
from engine_arms.compare import (
    compare_candidates,
    compare_forwards,
    differences,
    events_of,
    only,
    rank_faults,
)
from engine_arms.recording import COUNTED, Recording, record
from engine_arms.scenarios import named

TOPK = 4
WORD = 4
SEQUENTIAL = ("alone", "seeds")
NAMES = (*SEQUENTIAL, "together")
Pair = tuple[Recording, Recording]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Dense and packed."""
    dense, packed = (
        record(
            ARMS[name],
            tmp_path_factory.mktemp(name),
            scenarios=named(NAMES),
            disturbed=False,
            speculation=tree_args(TOPK),
        )
        for name in ("dense", "packed")
    )
    return dense, packed


def test_arms(pair: Pair) -> None:
    """Red when the packed path refuses a tree, or when no tree is drafted."""
    dense, packed = pair
    assert dense.status is None and packed.status["path"] == "packed"
    for arm in pair:
        seeds = only(events_of(arm.events[0], "alone"), SEED)
        assert {len(row) for event in seeds for row in event.token_ids} == {TOPK}


@pytest.mark.parametrize("name", NAMES)
def test_same_answers(pair: Pair, name: str) -> None:
    """Red when a token, an accept length or an accept histogram depends on the path."""
    dense, packed = pair
    assert dense.answers[name]
    assert differences(packed.answers[name], dense.answers[name]) == []


def test_drafts_are_accepted_some_of_the_time(pair: Pair) -> None:
    """Red when the trees are accepted too seldom for a comparison to show anything."""
    lengths = [a["spec_accept_length"] for a in pair[0].answers["together"]]
    assert len(set(lengths)) > 1 and sum(lengths) / len(lengths) > 1.3


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_same_candidates(pair: Pair, name: str) -> None:
    """Red when a candidate is lost, out of order or has another probability, at the
    seed or after a verify. Ties of dense probabilities are counted."""
    dense, packed = (events_of(arm.events[0], name) for arm in pair)
    found = compare_candidates(dense, packed)
    print(f"{name}: {found.rows} rows of candidates, {found.ties} with tied ones")
    assert found.faults == []
    assert found.rows > 0 and found.ties <= found.rows // 10


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_same_trees(pair: Pair, name: str) -> None:
    """Red when a level of a tree is fed other tokens or positions, when another tree
    is chosen from the levels, or positions do not advance by one a level."""
    dense, packed = (events_of(arm.events[0], name) for arm in pair)
    selection = compare_forwards(dense, packed)
    assert selection.rows > 0 and selection.faults == []
    trees = only(packed, CHAIN)
    for left, right in zip(only(dense, CHAIN), trees, strict=True):
        assert left.token_ids == right.token_ids
        assert left.positions_after == right.positions_after
    assert all(len(e.forwards) == NUM_STEPS - 1 for e in trees)
    assert all(len(f.token_ids) == TOPK for e in trees for f in e.forwards)


@pytest.mark.parametrize("name", NAMES)
def test_ranks_are_bit_identical(pair: Pair, name: str) -> None:
    """Red when a rank merges other bytes, or in another order."""
    packed = pair[1]
    assert len(packed.events) == TP
    assert only(events_of(packed.events[0], name), EXTEND) or name == "seeds"
    assert rank_faults(packed.events, name) == []


@pytest.mark.parametrize("name", [n for n in COUNTED if n in NAMES])
def test_one_vocabulary_collective_a_level(pair: Pair, name: str) -> None:
    """Red when a level gathers twice, or other than 2 * topk + 1 words a row and rank."""
    packed = pair[1]
    figures = draft_figures(packed.counters[name])
    forwards = sum(len(e.forwards) for e in events_of(packed.events[0], name))
    assert figures.steps == figures.collectives == forwards > 0
    assert figures.ranks_agree
    assert figures.bytes_per_token == (2 * TOPK + 1) * WORD * TP
