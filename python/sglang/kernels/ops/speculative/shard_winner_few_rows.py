"""``shard_winner`` and ``merge_shard_winners`` of a few rows of CPU tensors.

Here the time goes into starting torch operations, not into reading logits: a step of
one request starts some fifty in ``shard_winner_torch.py``. For a few rows what is left
of a row after its maxima are known is worked out on Python numbers, which are FP64.
"""

import math
import struct
from typing import Any, Optional, Tuple

import torch

from . import shard_winner_torch
from .shard_winner_torch import BLOCK, LOG2_E, NO_TOKEN, capped, row_sum, write_step

# Measured with benchmark/vocab_parallel_draft/bench_few_rows.py.
MOST_ROWS = 4

Row = Tuple[float, int, float]
"""A row's largest logit, its id or column, and the log-sum-exp."""


def takes(tensor: torch.Tensor, rows: int, k: int, valid_width: int = 1) -> bool:
    """Whether ``rows`` rows of this tensor are for this module.

    Args:
        tensor: logits, or words that were gathered.
        rows: of logits.
        k: winners a row.
        valid_width: of logits; a row is upcast to FP32 as a whole.
    """
    return (
        0 < rows <= MOST_ROWS
        and k == 1
        and tensor.device.type == "cpu"
        and 0 < valid_width <= shard_winner_torch.WORKSPACE_ELEMENTS
        # A compiled forward has no numbers to work with.
        and not torch.compiler.is_compiling()
    )


def reduce_rows(
    logits: torch.Tensor,
    *,
    vocab_start: int,
    softcap: Optional[float],
    rows_padded: int,
) -> torch.Tensor:
    """Words FP32 ``[3, rows_padded]`` of logits ``[rows, valid_width]``, neither 0."""
    found = [_reduce_row(row, softcap) for row in logits]
    for row, (_, _, logsumexp) in enumerate(found):
        if not math.isfinite(logsumexp):
            # Alone: its neighbours keep the bits that they have without it.
            found[row] = _reduce_odd_row(logits[row : row + 1], softcap)
    rest = (0,) * (rows_padded - len(found))
    values, columns, logsumexps = zip(*found)
    ids = (column + vocab_start for column in columns)
    form = f"={2 * rows_padded}f{rows_padded}i"
    packed = struct.pack(form, *values, *rest, *logsumexps, *rest, *ids, *rest)
    return torch.frombuffer(bytearray(packed), dtype=torch.float32).view(3, -1)


def merge_words(
    gathered: torch.Tensor, *, rows: int, last_id: int, **destinations: Any
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``merge_shard_winners`` on checked arguments."""
    numbers = gathered.tolist()
    bits = gathered.view(torch.int32)[2::3].tolist()
    merged = [
        _merge_row(
            [value[row] for value in numbers[::3]],
            [word[row] & 0x7FFFFFFF for word in bits],
            [logsumexp[row] for logsumexp in numbers[1::3]],
        )
        for row in range(rows)
    ]
    values, ids, logsumexps = zip(*merged)
    token_ids = torch.tensor([min(token_id, last_id) for token_id in ids])
    write_step(token_ids, **destinations)
    fields = torch.tensor([values, logsumexps], dtype=torch.float32)
    return token_ids, fields[0], fields[1]


def _reduce_row(row: torch.Tensor, softcap: Optional[float]) -> Row:
    """The log-sum-exp is not finite, and the rest means nothing, if the row holds a NaN
    or a logit whose exponent of two overflows."""
    values = capped(row.to(torch.float32, copy=True), softcap)
    column = _first_maximum(values)
    top = values[column]
    best = top.item()
    shift = top.mul(-LOG2_E)
    torch.add(shift, values, alpha=LOG2_E, out=values)
    total = row_sum(values.exp2_()).item()
    logsumexp = math.log(total) - shift.item() / LOG2_E if total > 0 else math.nan
    return best, column, logsumexp


def _reduce_odd_row(logits: torch.Tensor, softcap: Optional[float]) -> Row:
    words = shard_winner_torch.reduce_shard(
        logits,
        valid_width=logits.shape[1],
        vocab_start=0,
        softcap=softcap,
        rows_padded=1,
    )
    value, logsumexp, _ = words.flatten().tolist()
    return value, words.view(torch.int32)[2].item(), logsumexp


def _first_maximum(values: torch.Tensor) -> int:
    """First of the largest values ``[width]``; where a NaN is, that may be it."""
    whole = values.shape[0] // BLOCK * BLOCK
    if not whole:
        return values.argmax().item()
    maxima = values[:whole].view(-1, BLOCK).amax(dim=1)
    start = maxima.argmax().item() * BLOCK
    column = start + values[start : start + BLOCK].argmax().item()
    if whole < values.shape[0]:
        last = whole + values[whole:].argmax().item()
        # `not <=`: a NaN among the last ones is found, too.
        return last if not values[last] <= values[column] else column
    return column


def _merge_row(values: list, ids: list, logsumexps: list) -> Row:
    # A NaN value, which no shard sends, loses to everything: it equals nothing.
    best = max((value for value in values if value == value), default=-math.inf)
    candidates = (i for value, i in zip(values, ids) if value == best)
    return best + 0.0, min(candidates, default=NO_TOKEN), _logsumexp(logsumexps)


def _logsumexp(values: list) -> float:
    if any(math.isnan(value) for value in values):
        return math.nan
    top = max(values)
    if math.isinf(top):
        return top
    return top + math.log(sum(math.exp(value - top) for value in values))
