"""Draft ids step by step, on every rank, and what each step sends."""

from __future__ import annotations

import pytest
from collective_counter import RankCounters, draft_figures
from draft_recorder import Event
from draft_recorder.events import CHAIN, EXTEND, SEED

from engine_arms.arms import NUM_STEPS, ON, SPEC, TP, status_lines
from engine_arms.compare import (
    chain_faults,
    compare_forwards,
    compare_seeds,
    events_of,
    extend_faults,
    only,
    rank_faults,
    request_steps,
)
from engine_arms.recording import COUNTED, Recording
from engine_arms.scenarios import SCENARIOS

# One request at a time: both arms run the same batches.
SEQUENTIAL = [s.name for s in SCENARIOS if s.concurrency == 1]
CONCURRENT = [s.name for s in SCENARIOS if s.concurrency > 1]
WORD = 4
PADDED_COLUMNS = 1024  # of V = 1003, in shards that are multiples of 64
RANKS = range(TP)


def events(recording: Recording, name: str, rank: int = 0) -> list[Event]:
    return events_of(recording.events[rank], name)


def test_arms_are_what_they_say(dense: Recording, packed: Recording) -> None:
    """Red when an arm drafts on the other path, or does not say so once."""
    assert ON[1] == packed.status["mode"]
    assert packed.status["path"] == "packed"
    assert packed.status["transport"] == "gloo"
    assert packed.status["vocab_size"] == SPEC.vocab_size
    (line,) = status_lines(packed.log)
    assert "path=packed" in line and f"vocab_size={SPEC.vocab_size}" in line
    assert all(event.packed for rank in packed.events for event in rank)
    assert not any(event.packed for rank in dense.events for event in rank)


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_forwards_agree(dense: Recording, packed: Recording, name: str) -> None:
    """Red when a draft forward of any site is fed another token or position, finds
    another token or logit, or a log-sum-exp outside of the contract."""
    selection = compare_forwards(events(dense, name), events(packed, name))
    assert selection.rows > 0
    assert selection.faults == []


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_selections_agree(dense: Recording, packed: Recording, name: str) -> None:
    """Red when a chain's or an extend's tokens differ, or the positions that a chain
    leaves behind: what the sites hand on, not what their forwards found."""
    for left, right in zip(events(dense, name), events(packed, name), strict=True):
        assert left.site == right.site
        assert left.accept_lens == right.accept_lens
        assert left.positions_after == right.positions_after
        if left.site != SEED:
            assert left.token_ids == right.token_ids
            assert left.topk_p == right.topk_p


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_seeds_agree(dense: Recording, packed: Recording, name: str) -> None:
    """Red when the seed takes another token, or hands on anything but its exact
    probability. Rows whose dense softmax ties are counted, and may not be many."""
    selection = compare_seeds(events(dense, name), events(packed, name))
    assert selection.faults == []
    print(f"{selection.rows} seeds, {selection.ties} probability ties in dense")
    assert 0 < selection.rows and selection.ties <= selection.rows // 10


@pytest.mark.parametrize("name", CONCURRENT)
def test_requests_draft_alike(dense: Recording, packed: Recording, name: str) -> None:
    """Red when rows of a batch are mixed up: the tokens and positions of a request's
    steps do not depend on the path, whichever batches they ran in."""
    expected = request_steps(events(dense, name))
    assert len(expected) == len(dense.answers[name])
    assert request_steps(events(packed, name)) == expected
    widest = max(len(event.rids) for event in events(packed, name))
    assert widest > 1


@pytest.mark.parametrize("arm", ["dense", "packed"])
@pytest.mark.parametrize("name", ["alone", "together", "chunked"])
def test_sites_are_consistent(
    request: pytest.FixtureRequest, arm: str, name: str
) -> None:
    """Red when a chain does not feed on its own tokens, when its positions do not
    advance by one, or when an extend selects another row than the last accepted."""
    recorded = events(request.getfixturevalue(arm), name)
    for site in (SEED, CHAIN, EXTEND):
        assert only(recorded, site)
    assert chain_faults(recorded) == []
    assert extend_faults(recorded) == []
    assert all(len(e.forwards) == NUM_STEPS - 1 for e in only(recorded, CHAIN))


@pytest.mark.parametrize("name", [s.name for s in SCENARIOS])
def test_ranks_are_bit_identical(packed: Recording, name: str) -> None:
    """Red when a rank merges other bytes, or in another order: ids, logits, log-sum-exp
    and probabilities of every draft step have the same bits on every rank."""
    assert len(packed.events) == TP
    assert events(packed, name)
    assert rank_faults(packed.events, name) == []


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize(
    ("arm", "row_bytes"),
    [("packed", 3 * WORD * TP), ("dense", PADDED_COLUMNS * WORD)],
)
def test_one_vocabulary_collective_a_step(
    request: pytest.FixtureRequest, arm: str, row_bytes: int, name: str
) -> None:
    """Red when a draft step gathers twice or not at all, sends more than three words
    a padded row and rank, or when a vocabulary collective of another kind appears."""
    recording: Recording = request.getfixturevalue(arm)
    counters = recording.counters[name]
    figures = draft_figures(counters)
    forwards = sum(len(event.forwards) for event in events(recording, name))
    assert figures.steps == figures.collectives == forwards > 0
    assert figures.ranks_agree
    assert figures.bytes_per_token == row_bytes
    for rank in counters:
        assert rank.calls("draft_logits") == {"all_gather": forwards}
    if arm == "packed" and name == "alone":
        # Four rows at most, one request: always padded to four.
        assert figures.rows == 4 * forwards


def test_other_collectives_are_the_same(dense: Recording, packed: Recording) -> None:
    """Red when the packed path changes what the layers or the target exchange."""
    pairs = zip(dense.counters["alone"], packed.counters["alone"], strict=True)
    for left, right in pairs:
        for scope in ("target_logits", "other"):
            assert untimed_calls(left, scope) == untimed_calls(right, scope)


def untimed_calls(rank: RankCounters, scope: str) -> dict[str, int]:
    """Calls by kind; the idle scheduler broadcasts on every turn of its loop."""
    calls = rank.calls(scope)
    calls.pop("broadcast", None)
    return calls
