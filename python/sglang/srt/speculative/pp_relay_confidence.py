"""Probabilities of a chain on its way between pipeline stages.

The last stage drafts the next round's chain, and every stage rebuilds the verify input
from rows that are relayed by request (``PPSpecRelayInput``). The probabilities are a
field of those rows: FP32 ``[rows, steps]``. A request that was not drafted for, as in
its first round after a prefill, is verified with placeholders: its row is NaN.
"""

from __future__ import annotations

import math
from typing import Any, Optional

import torch


def not_drafted(rows: int, steps: int, device: Any) -> torch.Tensor:
    """Rows of requests that have no drafts, FP32 ``[rows, steps]``."""
    return torch.full((rows, steps), math.nan, device=device)


def drafted(probability: torch.Tensor) -> torch.Tensor:
    """Which rows of ``[rows, steps]`` hold drafts, bool ``[rows]``. A NaN is never a
    draft's probability (``selected_probability``)."""
    return ~probability.isnan().any(dim=-1)


def verified(relay: Any, worker: Any, steps: int) -> Optional[torch.Tensor]:
    """Probabilities of the drafts that a stage is about to verify, FP32
    ``[rows, steps]``; ``None`` where the server collects none.

    Args:
        relay: the round's ``PPSpecRelayInput``, in the order of its batch.
        worker: the stage's model worker, after ``install_chain_confidence``.
    """
    if not worker.draft_confidence_status["collects"]:
        return None
    return _rows(relay, steps)


def merged(first: Any, second: Any) -> Optional[torch.Tensor]:
    """The field of two ``PPSpecRelayInput`` that become one; ``None`` if neither has
    it."""
    steps = _steps(first, second)
    if steps is None:
        return None
    return torch.cat([_rows(first, steps), _rows(second, steps)])


def adopted(current: Any, relayed: Any) -> Optional[torch.Tensor]:
    """The field of ``current`` after it took ``relayed``'s rows of the same requests; a
    request that ``relayed`` does not name keeps its own."""
    steps = _steps(current, relayed)
    if steps is None:
        return None
    source = {rid: row for row, rid in enumerate(relayed.rids)}
    taken = [(r, source[rid]) for r, rid in enumerate(current.rids) if rid in source]
    own = _rows(current, steps).clone()
    if taken:
        to, take = torch.tensor(taken, device=own.device).unbind(dim=1)
        own[to] = _rows(relayed, steps).to(own.device)[take]
    return own


def _steps(*relays: Any) -> Optional[int]:
    """Positions of a chain, from those that have the field."""
    fields = [relay.draft_probability for relay in relays]
    return next((field.shape[1] for field in fields if field is not None), None)


def _rows(relay: Any, steps: int) -> torch.Tensor:
    if relay.draft_probability is not None:
        return relay.draft_probability
    return not_drafted(len(relay.rids), steps, relay.tokens.device)
