"""Launches of the Triton kernels behind ``shard_winner`` and ``merge_shard_winners``.

A local reduction is one launch where a row needs no split, else two: partial results
of column chunks, then their combination. A merge is one launch. How the work is split
follows from shapes only, nothing is copied to the host, and every output is new, so
the launches can be captured in a CUDA graph.

Imports torch, Triton and its own kernels only: it runs where SGLang is not installed.
The callers in ``shard_winner.py`` check the arguments.
"""

from typing import NamedTuple, Optional, Tuple

import torch
import triton

from .shard_winner_kernels import combine_kernel, merge_kernel, shard_kernel

WARPS = 4
"""Warps of a program of the shard kernel."""

VECTOR_BYTES = 16
"""Bytes of a row that a thread loads at a time."""

UNROLL = 8
"""Most loads that a thread has in flight, a power of two."""

MAX_SPLITS = 128
"""Chunks of a row: the lanes of the kernel that combines them."""

# 132 SMs with 4 programs each: what the registers of the longest variant leave room
# for on an H100 or H200. Not measured yet.
TARGET_PROGRAMS = 528

PROGRAM_ROWS = 1
"""Most rows of a program of the shard kernel. More, a power of two, suit Triton's
interpreter, where a program costs more than its elements."""

MERGE_ROWS = 32
"""Rows of a program of the merge kernel, one a thread."""


class Split(NamedTuple):
    """Chunks of every row, and blocks of columns in a chunk."""

    chunks: int
    chunk_blocks: int


def block_columns(dtype: torch.dtype) -> int:
    """Columns that the threads of a program load at a time."""
    return WARPS * 32 * VECTOR_BYTES // dtype.itemsize


def split_columns(rows: int, width: int, block: int) -> Split:
    """Split rows of ``width`` columns so that few rows still fill the GPU.

    Many rows are not split. A chunk is a power of two of blocks, at most ``UNROLL``,
    or a multiple of ``UNROLL``: its loads are in flight together.
    """
    blocks = max(triton.cdiv(width, block), 1)
    wanted = min(max(TARGET_PROGRAMS // rows, 1), MAX_SPLITS)
    chunk_blocks = triton.cdiv(blocks, wanted)
    if chunk_blocks < UNROLL:
        chunk_blocks = triton.next_power_of_2(chunk_blocks)
    else:
        chunk_blocks = triton.cdiv(chunk_blocks, UNROLL) * UNROLL
    return Split(triton.cdiv(blocks, chunk_blocks), chunk_blocks)


def reduce_shard(
    logits: torch.Tensor,
    *,
    valid_width: int,
    vocab_start: int,
    softcap: Optional[float],
    rows_padded: int,
) -> torch.Tensor:
    """``shard_winner`` on checked arguments: FP32 words ``[3, rows_padded]``."""
    rows = logits.shape[0]
    words = logits.new_empty((3, rows_padded), dtype=torch.float32)
    if rows == 0:
        return words
    block = block_columns(logits.dtype)
    split = split_columns(rows, valid_width, block)
    program_rows = min(PROGRAM_ROWS, triton.next_power_of_2(rows))
    packs = split.chunks == 1
    out = words if packs else words.new_empty((3, rows * split.chunks))
    out_rows = rows_padded if packs else rows
    shard_kernel[(triton.cdiv(out_rows, program_rows), split.chunks)](
        logits,
        out,
        rows,
        out_rows,
        valid_width,
        logits.stride(0) if rows > 1 else 0,
        vocab_start,
        split.chunk_blocks,
        1.0 if softcap is None else float(softcap),
        SOFTCAP=softcap is not None,
        ROWS=program_rows,
        BLOCK=block,
        COUNT=min(split.chunk_blocks, UNROLL),
        INTERPRET=triton.knobs.runtime.interpret,
        num_warps=WARPS,
    )
    if not packs:
        combine_kernel[(triton.cdiv(rows_padded, program_rows),)](
            out,
            words,
            rows,
            rows_padded,
            split.chunks,
            ROWS=program_rows,
            LANES=MAX_SPLITS,
            num_warps=1,
        )
    return words


def merge_words(
    gathered: torch.Tensor,
    *,
    rows: int,
    last_id: int,
    draft_tokens: Optional[torch.Tensor] = None,
    column: int = 0,
    positions: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``merge_shard_winners`` on checked arguments; ids are clamped to ``last_id``."""
    token_ids = gathered.new_empty(rows, dtype=torch.int64)
    logits = gathered.new_empty(rows)
    logsumexps = gathered.new_empty(rows)
    if rows == 0:
        return token_ids, logits, logsumexps
    merge_kernel[(triton.cdiv(rows, MERGE_ROWS),)](
        gathered,
        token_ids,
        logits,
        logsumexps,
        draft_tokens,
        positions,
        rows,
        last_id,
        column,
        gathered.stride(0),
        gathered.stride(1),
        0 if draft_tokens is None else draft_tokens.stride(0),
        0 if draft_tokens is None else draft_tokens.stride(1),
        0 if positions is None else positions.stride(0),
        TP=gathered.shape[0] // 3,
        BLOCK=MERGE_ROWS,
        num_warps=1,
    )
    return token_ids, logits, logsumexps
