"""Two recordings side by side: request by request, and draft step by draft step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from draft_recorder import Event, Forward
from draft_recorder.events import CHAIN, EXTEND, SEED

# The numeric contract: log-sum-exp 2e-5 relative or absolute, probability 2e-5 plus
# one FP32 step of the log-sum-exp.
LSE_TOLERANCE = 2e-5
# Two FP32 probabilities this close, relatively, are one up to the rounding of either.
TIE = 1e-6
# How an answer was received, not what it says.
UNCOMPARED = {"chunk_ids", "longest_gap_s"}


def differences(ours: Sequence[dict], theirs: Sequence[dict]) -> list[str]:
    """Where answers differ, one line each: `request 2: spec_accept_length 1 != 2`."""
    lines = []
    if len(ours) != len(theirs):
        return [f"{len(ours)} answers, {len(theirs)} expected"]
    for index, (left, right) in enumerate(zip(ours, theirs)):
        for key in sorted((left.keys() | right.keys()) - UNCOMPARED):
            if left.get(key) != right.get(key):
                lines.append(
                    f"request {index}: {key} {left.get(key)!r} != {right.get(key)!r}"
                )
    return lines


def events_of(events: Sequence[Event], scenario: str) -> list[Event]:
    """Events whose requests all belong to a scenario."""
    prefix = f"{scenario}/"
    return [e for e in events if e.rids and all(r.startswith(prefix) for r in e.rids)]


def request_steps(events: Iterable[Event]) -> dict[str, list[tuple]]:
    """The draft steps of each request in order, whichever batches they ran in: the
    site, the ids that it chose, and the positions and ids it fed to the draft. Of the
    seeds of a prompt the last counts: how prefill cuts a prompt depends on what else
    waits."""
    steps: dict[str, list[tuple]] = {}
    for event in events:
        rows = len(event.rids)
        for row, rid in enumerate(event.rids):
            given = [
                (own_rows(f.input_ids, row, rows), own_rows(f.positions, row, rows))
                for f in event.forwards
                if event.site != SEED
            ]
            step = (event.site, tuple(event.token_ids[row]), tuple(given))
            before = steps.setdefault(rid, [])
            if before and event.site == before[-1][0] == SEED:
                before.pop()
            before.append(step)
    return steps


def own_rows(values: Sequence[int], row: int, requests: int) -> tuple[int, ...]:
    """The part of one request in values of equally many rows a request."""
    width = len(values) // requests
    return tuple(values[row * width : (row + 1) * width])


@dataclass
class Selection:
    """How two arms' draft forwards compare; `ties` are rows left out because the dense
    softmax gives several tokens the same, largest probability."""

    rows: int = 0
    ties: int = 0
    faults: list[str] = field(default_factory=list)


def compare_forwards(dense: Sequence[Event], packed: Sequence[Event]) -> Selection:
    """Ids and logits bit for bit, log-sum-exp by the contract, over all forwards."""
    selection = Selection()
    if len(dense) != len(packed):
        selection.faults.append(f"{len(packed)} packed events, {len(dense)} dense")
    for number, (left, right) in enumerate(zip(dense, packed)):
        where = f"event {number} ({left.site} of {left.rids})"
        if (left.site, left.rids) != (right.site, right.rids):
            selection.faults.append(f"{where}: packed has {right.site} {right.rids}")
            break
        if len(left.forwards) != len(right.forwards):
            selection.faults.append(f"{where}: other number of forwards")
        for one, other in zip(left.forwards, right.forwards):
            _compare_rows(selection, where, one, other)
    return selection


def _compare_rows(
    selection: Selection, where: str, dense: Forward, packed: Forward
) -> None:
    for name in ("input_ids", "positions"):
        if getattr(dense, name) != getattr(packed, name):
            selection.faults.append(f"{where}: {name} differ")
    if len(dense.token_ids) != len(packed.token_ids):
        selection.faults.append(f"{where}: other number of rows")
    for row in range(min(len(dense.token_ids), len(packed.token_ids))):
        selection.rows += 1
        pair = dense.token_ids[row], packed.token_ids[row]
        if pair[0] != pair[1]:
            selection.faults.append(f"{where} row {row}: token {pair}")
        if dense.logits[row] != packed.logits[row]:
            selection.faults.append(f"{where} row {row}: logit differs")
        if not lse_close(dense.logsumexp[row], packed.logsumexp[row]):
            selection.faults.append(f"{where} row {row}: log-sum-exp differs")


def lse_close(exact: float, ours: float) -> bool:
    """Within `LSE_TOLERANCE`, relative or absolute."""
    return abs(exact - ours) <= LSE_TOLERANCE * max(1.0, abs(exact))


def compare_seeds(dense: Sequence[Event], packed: Sequence[Event]) -> Selection:
    """Ids and probabilities after prefills. Where the dense softmax ties, the packed
    id has to be the largest logit's, and the row counts as a tie."""
    selection = Selection()
    for left, right in zip(only(dense, SEED), only(packed, SEED), strict=True):
        last = left.forwards[0]
        for row, rid in enumerate(left.rids):
            selection.rows += 1
            tied = last.equal_best[row] > 1
            selection.ties += tied
            expected = [last.token_ids[row]] if tied else left.token_ids[row]
            if right.token_ids[row] != expected:
                selection.faults.append(f"{rid}: {right.token_ids[row]} != {expected}")
            bound = probability_bound(right.forwards[0].logsumexp[row])
            if abs(left.topk_p[row] - right.topk_p[row]) > bound:
                selection.faults.append(
                    f"{rid}: probability {right.topk_p[row]} != {left.topk_p[row]}"
                )
    return selection


def compare_candidates(dense: Sequence[Event], packed: Sequence[Event]) -> Selection:
    """Candidates of trees and their probabilities, where a site hands them on. A
    candidate may differ, and counts as a tie, where its probability does not: the
    dense path selects by rounded probability."""
    selection = Selection()
    for left, right in zip(dense, packed, strict=True):
        if left.site == CHAIN:
            continue
        width = len(left.token_ids[0])
        for row, rid in enumerate(left.rids):
            selection.rows += 1
            pairs = zip(left.token_ids[row], right.token_ids[row], strict=True)
            bound = probability_bound(right_logsumexp(right, row))
            tied = False
            for j, (expected, found) in enumerate(pairs):
                at = row * width + j
                gap = abs(left.topk_p[at] - right.topk_p[at])
                if gap > bound:
                    selection.faults.append(f"{rid}: candidate {j} is off by {gap}")
                elif expected != found and gap > TIE * left.topk_p[at]:
                    selection.faults.append(f"{rid}: {found} != {expected}, gap {gap}")
                tied |= expected != found
            selection.ties += tied
    return selection


def right_logsumexp(event: Event, row: int) -> float:
    """Log-sum-exp of a request's row of a seed or an extend."""
    return (
        event.forwards[0].logsumexp[row]
        if event.site == SEED
        else event.selected[2][row]
    )


def probability_bound(logsumexp: float) -> float:
    """Largest permitted difference of a probability, from the numeric contract."""
    step = float(np.spacing(np.float32(abs(logsumexp))))
    return LSE_TOLERANCE + step


def only(events: Sequence[Event], site: str) -> list[Event]:
    """Events of one site."""
    return [event for event in events if event.site == site]


def chain_faults(events: Sequence[Event]) -> list[str]:
    """Where a chain does not follow from its own forwards: each step is fed the token
    that the step before chose, at the next position, and the last position is one
    past the last step's."""
    faults = []
    for number, event in enumerate(only(events, CHAIN)):
        rows = len(event.rids)
        columns = [f.token_ids for f in event.forwards]
        chosen = [list(step) for step in zip(*event.token_ids)]
        if chosen[1:] != columns:
            faults.append(f"chain {number}: {chosen[1:]} != {columns}")
        if [f.input_ids for f in event.forwards] != chosen[:-1]:
            faults.append(f"chain {number}: fed other tokens than it chose")
        if not event.forwards:  # a chain of one token, the seed's
            continue
        start = event.forwards[0].positions
        for step, forward in enumerate(event.forwards):
            if forward.positions != [p + step for p in start]:
                faults.append(f"chain {number}: positions of step {step}")
        if event.positions_after != [p + len(event.forwards) for p in start]:
            faults.append(f"chain {number}: positions after, {rows} rows")
    return faults


def extend_faults(events: Sequence[Event]) -> list[str]:
    """Where a draft extend hands on another row than its request's last accepted, in
    its ids or in any field of its output."""
    faults = []
    for number, event in enumerate(only(events, EXTEND)):
        rows = len(event.rids)
        forward = event.forwards[0]
        for kind, values, selected in zip(
            ("ids", "logits", "log-sum-exps"),
            (forward.token_ids, forward.logits, forward.logsumexp),
            event.selected,
            strict=True,
        ):
            expected = [
                own_rows(values, row, rows)[accepted - 1]
                for row, accepted in enumerate(event.accept_lens)
            ]
            if selected != expected:
                faults.append(f"extend {number}: {kind} {selected} != {expected}")
            if kind == "ids" and event.token_ids != [[i] for i in expected]:
                faults.append(f"extend {number}: hands on {event.token_ids}")
        if event.topk_p != [1.0] * rows:
            faults.append(f"extend {number}: probabilities {event.topk_p}")
    return faults


def rank_faults(ranks: Sequence[Sequence[Event]], scenario: str) -> list[str]:
    """Events that are not the same, bit for bit, on every rank."""
    first, *others = (events_of(events, scenario) for events in ranks)
    return [
        f"{scenario}: event {number} of rank {rank}"
        for rank, events in enumerate(others, start=1)
        for number, pair in enumerate(zip(first, events, strict=True))
        if not same(*pair)
    ]


def same(left: Any, right: Any) -> bool:
    """Equality in which the sign of a zero and a NaN count."""
    if isinstance(left, float) and isinstance(right, float):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, (Event, Forward)):
        return all(map(same, vars(left).values(), vars(right).values()))
    return left == right
