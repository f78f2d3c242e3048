"""Triton kernels of ``shard_winner`` and ``merge_shard_winners``.

Value comparisons are explicit: a NaN is never larger, and an equal value wins only
with a smaller id. ``tl.max`` sees no NaN. Launched by ``shard_winner_triton.py``.
"""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

_NO_TOKEN = tl.constexpr(2**31 - 1)
_ID_BITS = tl.constexpr(0x7FFFFFFF)
_FLOAT32_MAX = tl.constexpr(torch.finfo(torch.float32).max)
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _finite(value):
    """Shift of an exponent: infinities become the nearest finite number."""
    return tl.minimum(tl.maximum(value, -_FLOAT32_MAX), _FLOAT32_MAX)


@triton.jit
def _exp_difference(value, shift):
    # Subtract first: the product of a large logit alone would round or overflow.
    return tl.exp2((value - shift) * _LOG2_E)


@triton.jit
def _tanh(x, INTERPRET: tl.constexpr):
    if INTERPRET:  # the interpreter has no libdevice
        decay = tl.exp(-2.0 * tl.abs(x.to(tl.float64)))
        size = ((1.0 - decay) / (1.0 + decay)).to(tl.float32)
        result = tl.where(x < 0, -size, size)
    else:
        result = libdevice.tanh(x)
    return result


@triton.jit
def _fold(
    row,
    start,
    end,
    cap,
    state,
    COUNT: tl.constexpr,
    MASKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Fold ``COUNT`` blocks of columns from ``start`` on into the lanes' state.

    ``row`` holds pointers ``[rows, 1]``; the state is ``[rows, BLOCK]``. A lane holds
    its largest value, the sum of exponentials shifted by that value (NaN once a NaN
    was seen), and the start of the block where it saw the value first.
    """
    best, total, origin = state
    BLOCK: tl.constexpr = best.shape[1]
    lanes = tl.arange(0, BLOCK)[None, :]
    loaded = ()
    for i in tl.static_range(COUNT):
        columns = start + i * BLOCK + lanes
        if MASKED:
            loaded += (tl.load(row + columns, mask=columns < end, other=0.0),)
        else:
            loaded += (tl.load(row + columns),)
    values = ()
    top = best
    for i in tl.static_range(COUNT):
        x = loaded[i].to(tl.float32)
        if SOFTCAP:
            x = _tanh(x / cap, INTERPRET) * cap
        if MASKED:
            x = tl.where(start + i * BLOCK + lanes < end, x, float("-inf"))
        # A NaN is not larger; of equal values the first of a lane has the smallest id.
        larger = x > top
        top = tl.where(larger, x, top)
        origin = tl.where(larger, start + i * BLOCK, origin)
        values += (x,)
    shift = _finite(top)
    total *= _exp_difference(_finite(best), shift)
    for i in tl.static_range(COUNT):
        total += _exp_difference(values[i], shift)
    return top, total, origin


@triton.jit
def _across_lanes(best, total, ids):
    """Largest value, its sum of exponentials, and the smallest id of that value.

    ``best`` never holds a NaN.
    """
    value = tl.max(best, axis=1, keep_dims=True)
    winner = tl.min(tl.where(best == value, ids, _NO_TOKEN), axis=1, keep_dims=True)
    scale = _exp_difference(_finite(best), _finite(value))
    mass = tl.sum(total * scale, axis=1, keep_dims=True)
    return value, mass, winner


@triton.jit
def _log_sum_exp(value, mass):
    return tl.log(mass) + _finite(value)


@triton.jit
def _store_words(out, word_stride, mask, real, value, middle, token_id):
    """Three words at the pointers ``out``; zeros where a row is not ``real``."""
    tl.store(out, tl.where(real, value, 0.0), mask=mask)
    tl.store(out + word_stride, tl.where(real, middle, 0.0), mask=mask)
    bits = tl.where(real, token_id, 0).to(tl.float32, bitcast=True)
    tl.store(out + 2 * word_stride, bits, mask=mask)


# What varies from call to call is not specialized: one binary serves every row count.
@triton.jit(do_not_specialize=["rows", "out_rows", "vocab_start", "chunk_blocks"])
def shard_kernel(
    logits,
    out,
    rows,
    out_rows,
    width,
    row_stride,
    vocab_start,
    chunk_blocks,
    cap,
    SOFTCAP: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNT: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Reduce one chunk of ``ROWS`` rows; program ``(rows, chunk)``.

    ``out`` is ``[3, out_rows, chunks]``: value, sum of exponentials and id bits. With
    one chunk a row these are the packed words: the log-sum-exp takes the sum's place.
    """
    first = tl.program_id(0) * ROWS
    chunk = tl.program_id(1)
    rows_here = first + tl.arange(0, ROWS)[:, None]
    begin = chunk * chunk_blocks * BLOCK
    end = tl.minimum(begin + chunk_blocks * BLOCK, width)
    # Rows past the last are read as the last one, or not at all.
    end = tl.where(first < rows, end, begin)
    readable = tl.minimum(rows_here, rows - 1)
    # 64 bits: rows * stride may reach 2^31.
    row = logits + readable.to(tl.int64) * row_stride

    best = tl.full([ROWS, BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    origin = tl.zeros([ROWS, BLOCK], tl.int32) + begin
    state = best, total, origin
    groups_end = begin + (end - begin) // (COUNT * BLOCK) * (COUNT * BLOCK)
    blocks_end = begin + (end - begin) // BLOCK * BLOCK
    for start in range(begin, groups_end, COUNT * BLOCK):
        state = _fold(row, start, end, cap, state, COUNT, False, SOFTCAP, INTERPRET)
    for start in range(groups_end, blocks_end, BLOCK):
        state = _fold(row, start, end, cap, state, 1, False, SOFTCAP, INTERPRET)
    if blocks_end < end:
        state = _fold(row, blocks_end, end, cap, state, 1, True, SOFTCAP, INTERPRET)

    best, total, origin = state
    columns = origin + tl.arange(0, BLOCK)[None, :]
    ids = tl.where(columns < end, columns + vocab_start, _NO_TOKEN)
    value, mass, winner = _across_lanes(best, total, ids)
    chunks = tl.num_programs(1)
    middle = tl.where(chunks == 1, _log_sum_exp(value, mass), mass)
    at = out + rows_here.to(tl.int64) * chunks + chunk
    word_stride = out_rows.to(tl.int64) * chunks
    real = rows_here < rows
    _store_words(at, word_stride, rows_here < out_rows, real, value, middle, winner)


@triton.jit(do_not_specialize=["rows", "rows_padded", "chunks"])
def combine_kernel(
    partials,
    words,
    rows,
    rows_padded,
    chunks,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Combine the chunks of ``ROWS`` rows into their packed words; program ``(rows,)``.

    ``partials`` is ``[3, rows, chunks]``, ``words`` ``[3, rows_padded]``.
    """
    rows_here = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    real = rows_here < rows
    lanes = tl.arange(0, LANES)[None, :]
    used = (lanes < chunks) & real
    at = partials + rows_here.to(tl.int64) * chunks + lanes
    word_stride = rows.to(tl.int64) * chunks
    best = tl.load(at, mask=used, other=float("-inf"))
    total = tl.load(at + word_stride, mask=used, other=0.0)
    bits = tl.load(at + 2 * word_stride, mask=used, other=0.0)
    ids = tl.where(used, bits.to(tl.int32, bitcast=True), _NO_TOKEN)
    value, mass, winner = _across_lanes(best, total, ids)
    middle = _log_sum_exp(value, mass)
    out = words + rows_here
    _store_words(out, rows_padded, rows_here < rows_padded, real, value, middle, winner)


@triton.jit(do_not_specialize=["rows", "last_id", "column"])
def merge_kernel(
    gathered,
    token_ids,
    logits,
    logsumexps,
    draft_tokens,
    positions,
    rows,
    last_id,
    column,
    word_stride,
    row_stride,
    draft_row_stride,
    draft_column_stride,
    position_stride,
    TP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Merge the words of ``TP`` ranks in rank order, one row a lane."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = row < rows
    row = row.to(tl.int64)
    word = gathered + row * row_stride

    best = tl.full([BLOCK], float("-inf"), tl.float32)
    winner = tl.full([BLOCK], _NO_TOKEN, tl.int32)
    top = best
    mass = tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(TP):
        value = tl.load(word + (3 * rank) * word_stride, mask=real, other=0.0)
        part = tl.load(word + (3 * rank + 1) * word_stride, mask=real, other=0.0)
        bits = tl.load(word + (3 * rank + 2) * word_stride, mask=real, other=0.0)
        # A transport may set the sign bit of an all-zero word; ids have none.
        token_id = bits.to(tl.int32, bitcast=True) & _ID_BITS
        # A NaN value, which no shard sends, loses to everything.
        wins = (value > best) | ((value == best) & (token_id < winner))
        best = tl.where(wins, value, best)
        winner = tl.where(wins, token_id, winner)

        larger = tl.where(part > top, part, top)
        mass *= _exp_difference(_finite(top), _finite(larger))
        mass += _exp_difference(part, _finite(larger))
        top = larger

    token_id = tl.minimum(winner, last_id).to(tl.int64)
    tl.store(token_ids + row, token_id, mask=real)
    # A transport may turn one zero into the other: both are returned as +0.0.
    tl.store(logits + row, tl.where(best == 0.0, 0.0, best), mask=real)
    tl.store(logsumexps + row, _log_sum_exp(top, mass), mask=real)
    if draft_tokens is not None:
        at = row * draft_row_stride + column.to(tl.int64) * draft_column_stride
        tl.store(draft_tokens + at, token_id, mask=real)
    if positions is not None:
        position = positions + row * position_stride
        tl.store(position, tl.load(position, mask=real, other=0) + 1, mask=real)
