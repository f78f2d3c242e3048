"""Launches of the Triton kernels behind ``shard_winner`` and its merge, ``k`` > 1.

A local reduction is two launches: the largest value and the sum of exponentials of
every chunk of columns, by the kernel of ``k`` = 1, then one program a row that finds
the ``k`` best in the ``k`` best chunks. A merge is one launch. As for ``k`` = 1, how
the work is split follows from shapes only, and every output is new.
"""

from typing import NamedTuple, Optional, Tuple

import torch
import triton

from . import shard_winner_triton as winner
from .shard_topk_kernels import merge_topk_kernel, pick_kernel
from .shard_winner_kernels import shard_kernel

PICK_WARPS = 8
"""Warps of a program of the pick kernel: it holds ``k`` chunks in registers."""

MAX_LANES = 4096
"""Most chunks of a row: the lanes of the pick kernel."""


class Chunks(NamedTuple):
    """Chunks of every row, and lanes that hold one each."""

    count: int
    lanes: int


def chunks_of(width: int, block: int) -> Chunks:
    """Chunks of one block of columns each: few columns to look at again.

    Raises:
        ValueError: more columns than a program has lanes for.
    """
    count = max(triton.cdiv(width, block), 1)
    if count > MAX_LANES:
        raise ValueError(f"k > 1: a shard has at most {MAX_LANES * block} columns")
    return Chunks(count, triton.next_power_of_2(count))


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
    words = logits.new_empty((2 * k + 1, rows_padded), dtype=torch.float32)
    if rows == 0:
        return words
    block = winner.block_columns(logits.dtype)
    chunks = chunks_of(valid_width, block)
    partials = words.new_empty((3, rows * chunks.count))
    program_rows = min(winner.PROGRAM_ROWS, triton.next_power_of_2(rows))
    row_stride = logits.stride(0) if rows > 1 else 0
    cap = 1.0 if softcap is None else float(softcap)
    variant = dict(
        SOFTCAP=softcap is not None, INTERPRET=triton.knobs.runtime.interpret
    )
    shard_kernel[(triton.cdiv(rows, program_rows), chunks.count)](
        logits,
        partials,
        rows,
        rows,
        valid_width,
        row_stride,
        vocab_start,
        1,
        cap,
        ROWS=program_rows,
        BLOCK=block,
        COUNT=1,
        num_warps=winner.WARPS,
        **variant,
    )
    pick_kernel[(rows_padded,)](
        logits,
        partials,
        words,
        rows,
        rows_padded,
        chunks.count,
        valid_width,
        row_stride,
        vocab_start,
        cap,
        K=k,
        SLOTS=triton.next_power_of_2(k),
        LANES=chunks.lanes,
        CHUNK=block,
        num_warps=PICK_WARPS,
        **variant,
    )
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
    token_ids = gathered.new_empty((rows, k), dtype=torch.int64)
    logits = gathered.new_empty((rows, k))
    logsumexps = gathered.new_empty(rows)
    if rows == 0:
        return token_ids, logits, logsumexps
    ranks = gathered.shape[0] // (2 * k + 1)
    merge_topk_kernel[(rows,)](
        gathered,
        token_ids,
        logits,
        logsumexps,
        positions,
        last_id,
        gathered.stride(0),
        gathered.stride(1),
        0 if positions is None else positions.stride(0),
        K=k,
        SLOTS=triton.next_power_of_2(k),
        TP=ranks,
        RANKS=triton.next_power_of_2(ranks),
        num_warps=1,
    )
    return token_ids, logits, logsumexps
