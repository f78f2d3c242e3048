"""Torch path of ``shard_winner`` and ``merge_shard_winners`` with ``k`` > 1.

Candidates are ordered by value, largest first, then by id, smallest first; a NaN counts
as -inf. So ordered, the ``k`` first columns of a row lie in the ``k`` first of its
blocks ordered by their maxima: each of those blocks holds a column that comes before
all columns of a later block. One read of the shard therefore gives the maxima of the
blocks and the log-sum-exp, as for ``k`` = 1, and only ``k`` blocks are looked at again.
"""

from functools import partial
from typing import Optional, Tuple

import torch

from .shard_winner_torch import (
    BLOCK,
    LOWEST,
    NO_TOKEN,
    Tensors,
    ranked,
    reduce_tiles,
)


def reduce_shard(
    logits: torch.Tensor,
    *,
    valid_width: int,
    vocab_start: int,
    softcap: Optional[float],
    rows_padded: int,
    k: int,
) -> torch.Tensor:
    """``shard_winner`` on checked arguments: FP32 words ``[2 * k + 1, rows_padded]``."""
    rows = logits.shape[0]
    words = logits.new_zeros((2 * k + 1, rows_padded), dtype=torch.float32)
    ids = words.view(torch.int32)[k + 1 :, :rows]
    if valid_width == 0:
        words[: k + 1, :rows] = LOWEST
        ids.fill_(NO_TOKEN)
    elif rows:
        select = partial(_winners, k=k)
        fields = reduce_tiles(logits[:, :valid_width], softcap, select)
        values, columns, words[k, :rows] = fields
        words[:k, :rows] = values.T
        # Past the last column stand the fillers of a shard narrower than k.
        inside = columns < valid_width
        ids.copy_(torch.where(inside, columns + vocab_start, NO_TOKEN).T)
    return words


def merge_words(
    gathered: torch.Tensor,
    *,
    rows: int,
    last_id: int,
    k: int,
    positions: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``merge_shard_winners`` on checked arguments; ids are clamped to ``last_id``."""
    words = gathered.unflatten(0, (-1, 2 * k + 1))[:, :, :rows]
    values = words[:, :k].permute(2, 0, 1).flatten(1)
    bits = words[:, k + 1 :].permute(2, 0, 1).flatten(1).view(torch.int32)
    # A NaN value, which no shard sends, loses to everything. A transport may set the
    # sign bit of an all-zero word; ids have none.
    is_nan = values.isnan()
    ids = torch.where(is_nan, NO_TOKEN, bits & 0x7FFFFFFF)
    values = torch.where(is_nan, LOWEST, values)

    ids, order = ids.sort(dim=1)
    values = values.gather(1, order)
    values, order = _first(values, k)
    token_ids = ids.gather(1, order).clamp_(max=last_id).long()
    if positions is not None:
        positions[:rows] += 1
    return token_ids, values, torch.logsumexp(words[:, k], dim=0)


def _winners(
    logits: torch.Tensor,
    softcap: Optional[float],
    maxima: torch.Tensor,
    mask_nan: bool,
    k: int,
) -> Tensors:
    """``Select`` of the ``k`` first columns: FP32 and int64 ``[rows, k]``.

    Fillers, where there are fewer, are -inf at columns past the last one.
    """
    width = logits.shape[1]
    blocks = _first(maxima, min(k, maxima.shape[1]))[1].sort(dim=1).values
    inner = torch.arange(BLOCK, device=logits.device)
    columns = (blocks.unsqueeze(2) * BLOCK + inner).flatten(1)
    found = logits.gather(1, columns.clamp(max=width - 1))
    values = ranked(found, softcap, mask_nan).masked_fill_(columns >= width, LOWEST)
    values, order = _first(values, k)
    return values, columns.gather(1, order)


def _first(values: torch.Tensor, count: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """Largest values and their places, equal ones by place: ``[rows, count]``.

    Zeros become +0.0, since a sort by bits would tell them apart.
    """
    ordered, places = (values + 0.0).sort(dim=1, descending=True, stable=True)
    return ordered[:, :count], places[:, :count]
