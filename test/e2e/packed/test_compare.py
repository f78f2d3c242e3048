"""The comparisons themselves: each finds the one thing that was changed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from draft_recorder import Event, Forward
from draft_recorder.events import CHAIN, EXTEND, SEED

from engine_arms.compare import (
    chain_faults,
    compare_forwards,
    compare_seeds,
    differences,
    events_of,
    extend_faults,
    rank_faults,
    request_steps,
)

RIDS = ["alone/0", "alone/1"]


def forward(inputs: list[int], positions: list[int], ids: list[int]) -> Forward:
    rows = len(ids)
    logits = [float(10 + i) for i in range(rows)]
    lse = [logit + 0.5 for logit in logits]
    return Forward(inputs, positions, ids, logits, lse, [1] * rows)


def event(site: str, forwards: list[Forward], ids: list[list[int]], **more) -> Event:
    fields = dict(topk_p=[], positions_after=[], accept_lens=[], selected=[])
    fields |= dict(packed=True, packed_modules=[])
    return Event(site, RIDS, forwards, ids, **(fields | more))


SEEDS = event(SEED, [forward([1, 2], [0, 0], [5, 6])], [[5], [6]], topk_p=[0.6, 0.6])
CHAINS = event(
    CHAIN,
    [forward([5, 6], [1, 1], [7, 8]), forward([7, 8], [2, 2], [9, 10])],
    [[5, 7, 9], [6, 8, 10]],
    positions_after=[3, 3],
)
EXTENDS = event(
    EXTEND,
    [forward([5, 7, 9, 0], [1, 2, 1, 2], [11, 12, 13, 14])],
    [[12], [13]],
    topk_p=[1.0, 1.0],
    accept_lens=[2, 1],
    selected=[[12, 13], [11.0, 12.0], [11.5, 12.5]],
)
EVENTS = [SEEDS, CHAINS, EXTENDS]


def changed(base: Event, index: int, **change) -> Event:
    """The event with one field of one forward changed."""
    forwards = list(base.forwards)
    forwards[index] = replace(forwards[index], **change)
    return replace(base, forwards=forwards)


def test_equal_recordings_have_no_faults() -> None:
    """Red when a comparison finds fault with what is the same."""
    assert compare_forwards(EVENTS, EVENTS).faults == []
    assert compare_forwards(EVENTS, EVENTS).rows == 2 + 4 + 4
    assert compare_seeds(EVENTS, EVENTS).faults == []
    assert chain_faults(EVENTS) == extend_faults(EVENTS) == []
    assert rank_faults([EVENTS, EVENTS], "alone") == []


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": [7, 9]},
        {"logits": [10.0, 11.000001]},
        {"logsumexp": [10.5, 11.5 * (1 + 3e-5)]},
        {"input_ids": [5, 7]},
        {"positions": [1, 2]},
        {"token_ids": [7], "logits": [10.0], "logsumexp": [10.5]},
    ],
    ids=lambda change: "+".join(change),
)
def test_forward_differences_are_found(change: dict[str, list]) -> None:
    """Red when a field of a forward is not compared."""
    other = [SEEDS, changed(CHAINS, 0, **change), EXTENDS]
    assert compare_forwards(EVENTS, other).faults


def test_missing_events_are_found() -> None:
    """Red when two recordings are compared as far as the shorter one goes."""
    assert compare_forwards(EVENTS, EVENTS[:2]).faults
    assert compare_forwards(EVENTS, [EXTENDS, CHAINS, SEEDS]).faults


def test_seed_differences_are_found() -> None:
    """Red when a seed's id or probability is not compared, or a tie not counted."""
    assert compare_seeds([SEEDS], [replace(SEEDS, token_ids=[[5], [7]])]).faults
    assert compare_seeds([SEEDS], [replace(SEEDS, topk_p=[0.6, 0.60005])]).faults
    tied = replace(changed(SEEDS, 0, equal_best=[2, 1]), token_ids=[[4], [6]])
    selection = compare_seeds([tied], [SEEDS])
    assert selection.ties == 1 and selection.faults == []
    assert compare_seeds([tied], [tied]).faults


@pytest.mark.parametrize(
    "fault",
    [
        replace(CHAINS, token_ids=[[5, 7, 10], [6, 8, 10]]),
        replace(CHAINS, positions_after=[2, 2]),
        changed(CHAINS, 1, positions=[1, 1]),
        changed(CHAINS, 1, input_ids=[7, 7]),
    ],
    ids=["ids", "after", "positions", "fed"],
)
def test_chain_faults_are_found(fault: Event) -> None:
    """Red when a part of a chain is not checked."""
    assert chain_faults([fault])


@pytest.mark.parametrize(
    "fault",
    [
        replace(EXTENDS, token_ids=[[11], [13]]),
        replace(EXTENDS, accept_lens=[1, 1]),
        replace(EXTENDS, topk_p=[1.0, 0.9]),
        replace(EXTENDS, selected=[[12, 13], [10.0, 12.0], [11.5, 12.5]]),
        replace(EXTENDS, selected=[[12, 13], [11.0, 12.0], [10.5, 11.5, 12.5, 13.5]]),
    ],
    ids=["ids", "row", "probability", "logit", "lse-not-selected"],
)
def test_extend_faults_are_found(fault: Event) -> None:
    """Red when a field of an extend's selection is not checked."""
    assert extend_faults([fault])


def test_rank_differences_are_found() -> None:
    """Red when ranks are compared with a tolerance, or not at all."""
    other = changed(SEEDS, 0, logsumexp=[10.5, 11.500000000000002])
    assert rank_faults([EVENTS, [other, CHAINS, EXTENDS]], "alone")
    zeros = [replace(SEEDS, topk_p=[zero, 0.6]) for zero in (0.0, -0.0)]
    assert rank_faults([[zeros[0]], [zeros[1]]], "alone")


def test_steps_follow_the_request() -> None:
    """Red when steps are taken by row instead of by request."""
    swapped = replace(
        CHAINS,
        rids=RIDS[::-1],
        forwards=[forward([6, 5], [1, 1], [8, 7]), forward([8, 7], [2, 2], [10, 9])],
        token_ids=CHAINS.token_ids[::-1],
    )
    assert request_steps([CHAINS]) == request_steps([swapped])
    assert request_steps([CHAINS]) != request_steps([replace(swapped, rids=RIDS)])


def test_differences_name_the_request() -> None:
    """Red when answers of other keys, values or number pass as equal."""
    assert differences([{"text": "a"}], [{"text": "a"}]) == []
    assert differences([{"text": "a"}], [{"text": "b"}]) == [
        "request 0: text 'a' != 'b'"
    ]
    assert differences([{}], [{"text": "b"}]) and differences([{}], [])


def test_events_of_other_requests_are_left_out() -> None:
    """Red when health checks or other scenarios mix in."""
    other = replace(SEEDS, rids=["alone/0", "aloneness/1"])
    assert events_of([SEEDS, other, replace(SEEDS, rids=[])], "alone") == [SEEDS]
