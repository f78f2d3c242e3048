"""The probabilities of drafted tokens, dense against packed, and the adaptive policy that
goes by them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from draft_recorder import Event
from draft_recorder.events import CHAIN, EXTEND, SEED

from engine_arms.arms import NUM_STEPS
from engine_arms.compare import (
    chain_faults,
    events_of,
    extend_faults,
    probability_bound,
    rank_faults,
)
from engine_arms.recording import Recording
from engine_arms.scenarios import ADAPTIVE_NAMES as NAMES

CANDIDATES = [1, 2, NUM_STEPS, 5]
# Thresholds in the middle of what the model's drafts survive. Larger batches stop drafting
# now and then.
CONFIG = {
    "confidence_threshold": 0.3,
    "1": {"candidate_steps": CANDIDATES},
    "4": {"candidate_steps": [0, 1, NUM_STEPS], "confidence_threshold": 0.68},
}
POLICY = ("--speculative-adaptive-policy", "confidence")


@pytest.fixture(scope="module")
def off(adaptive: Callable[..., Recording]) -> Recording:
    return adaptive("confidence", "off", CONFIG, *POLICY)


@pytest.fixture(scope="module")
def on(adaptive: Callable[..., Recording]) -> Recording:
    return adaptive("confidence", "on", CONFIG, *POLICY)


def verified(recording: Recording, name: str) -> list[list[list[float]]]:
    """Probabilities of every verified chain of a scenario."""
    events = events_of(recording.events[0], name)
    return [event.verified for event in events if event.site == EXTEND]


def references(events: list[Event]) -> list[tuple[float, float, float]]:
    """Of every probability that a verification reported: it, the softmax of the row of
    dense logits in FP64, and the bound of their difference. A round of no steps reports
    nothing."""
    seeds: dict[str, tuple[float, float]] = {}
    chains: dict[str, list[tuple[float, float]]] = {}
    found = []
    for event in events:
        if event.site == CHAIN:
            for row, rid in enumerate(event.rids):
                steps = [(f.logits[row], f.logsumexp[row]) for f in event.forwards]
                chains[rid] = [seeds[rid], *steps]
            continue
        if event.site == EXTEND and event.verified:
            for rid, reported in zip(event.rids, event.verified, strict=True):
                pairs = zip(reported, chains.pop(rid), strict=True)
                found += [(p, *exact(*selected)) for p, selected in pairs]
        last = event.forwards[0]
        rows = event.selected[1:] if event.selected else (last.logits, last.logsumexp)
        seeds |= dict(zip(event.rids, zip(*rows), strict=True))
    return found


def exact(logit: float, logsumexp: float) -> tuple[float, float]:
    """Probability from a logit and an FP64 log-sum-exp, and the bound around it."""
    return math.exp(logit - logsumexp), probability_bound(logsumexp)


@pytest.mark.parametrize("name", NAMES)
def test_probabilities_are_the_softmax_of_the_dense_logits(
    off: Recording, name: str
) -> None:
    """Red when a probability belongs to another token, step or request, or is off by
    more than the contract allows."""
    found = references(events_of(off.events[0], name))
    assert len(found) > 20
    assert [x for x in found if abs(x[0] - x[1]) > x[2]] == []
    # Not all alike: a constant would be close to itself.
    assert max(p for p, *_ in found) - min(p for p, *_ in found) > 0.1


def test_dense_and_packed_have_the_same_bits(off: Recording, on: Recording) -> None:
    """Red when dense sums in another order: a decision could differ. JSON keeps FP32
    bits."""
    assert on.status["path"] == "packed" and off.status is None
    assert verified(off, "alone") == verified(on, "alone")
    handed_on = [
        [event.probability for event in events_of(arm.events[0], "alone")]
        for arm in (off, on)
    ]
    assert handed_on[0] == handed_on[1]


@pytest.mark.parametrize("arm", ["off", "on"])
@pytest.mark.parametrize("name", NAMES)
def test_ranks_have_the_same_bits(
    request: pytest.FixtureRequest, arm: str, name: str
) -> None:
    """Red when a rank computes a probability of its own, and so could decide alone."""
    recording: Recording = request.getfixturevalue(arm)
    assert verified(recording, name)
    assert rank_faults(recording.events, name) == []


def test_each_chain_is_reported_whole(off: Recording, on: Recording) -> None:
    """Red when a chain's probabilities are cut, or left over from a longer one."""
    for arm in (off, on):
        events = events_of(arm.events[0], "alone")
        chains = [len(e.token_ids[0]) for e in events if e.site == CHAIN]
        reported = [len(e.verified[0]) for e in events if e.site == EXTEND]
        assert chains == reported
        assert len(set(chains)) > 1 and set(chains) <= set(CANDIDATES)


def test_a_chain_starts_with_its_seed(off: Recording, on: Recording) -> None:
    """Red when a seed's probability is another request's or round's, is lost on the way
    from the prefill, or is none."""
    for arm in (off, on):
        events = events_of(arm.events[0], "alone")
        seeds: dict[str, float] = {}
        found = []
        for event in events:
            if event.site == EXTEND and event.verified:
                chains = zip(event.rids, event.verified, strict=True)
                found += [(seeds[rid], chain[0]) for rid, chain in chains]
            if event.site != CHAIN:
                handed_on = zip(event.rids, event.probability, strict=True)
                seeds |= {rid: seed for rid, (seed,) in handed_on}
                assert all(0 < seed <= 1 for seed in seeds.values())
        assert len({e.rids[0] for e in events if e.site == SEED}) == len(seeds) > 0
        assert found and [pair for pair in found if pair[0] != pair[1]] == []


def test_rounds_of_no_steps(off: Recording, on: Recording) -> None:
    """Red when the seed is lost over rounds without drafts, or such a round reports a
    chain that it did not draft."""
    for arm in (off, on):
        events = events_of(arm.events[0], "together")
        extends = [event for event in events if event.site == EXTEND]
        chains = [event for event in events if event.site == CHAIN]
        idle = [event for event in extends if not event.verified]
        assert idle and chains and len(idle) + len(chains) == len(extends)
        assert all(max(event.accept_lens) == 1 for event in idle)
        assert all(len(event.probability) == len(event.rids) for event in idle)


@pytest.mark.parametrize("name", NAMES)
def test_the_policy_changes_no_token(
    dense: Recording, off: Recording, on: Recording, name: str
) -> None:
    """Red when fewer or more drafts change what is answered."""
    assert off.ids(name) == dense.ids(name) == on.ids(name)


def test_topk_p_keeps_its_meaning(off: Recording, on: Recording) -> None:
    """Red when a probability is handed on in the place of SGLang's own field."""
    for arm in (off, on):
        events = events_of(arm.events[0], "alone")
        assert chain_faults(events) == [] and extend_faults(events) == []


def test_a_server_without_the_flag_reports_nothing(dense: Recording) -> None:
    """Red when something is collected that nobody asked for."""
    events = dense.events[0]
    assert events and not any(event.probability or event.verified for event in events)
