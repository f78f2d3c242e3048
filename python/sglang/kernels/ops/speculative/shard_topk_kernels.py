"""Triton kernels of ``shard_winner`` and ``merge_shard_winners`` with ``k`` > 1.

Candidates are ordered by value, largest first, then by id, smallest first; a NaN counts
as -inf. The order is walked one candidate at a time, so that equal values are exact by
construction. Launched by ``shard_topk_triton.py``.
"""

import triton
import triton.language as tl

from .shard_winner_kernels import _exp_difference, _finite, _log_sum_exp, _tanh

_NO_TOKEN = tl.constexpr(2**31 - 1)
_ID_BITS = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _next(values, ids, value, token_id):
    """The first candidate behind ``(value, token_id)``; (-inf, no token) if none is.

    ``values`` hold no NaN; of one value, every id occurs once.
    """
    behind = (values < value) | ((values == value) & (ids > token_id))
    best = tl.max(tl.where(behind, values, float("-inf")))
    first = tl.min(tl.where(behind & (values == best), ids, _NO_TOKEN))
    return best, first


@triton.jit
def _before_all():
    return tl.full((), float("inf"), tl.float32), tl.full((), -1, tl.int32)


# What varies from call to call is not specialized: one binary serves every row count.
@triton.jit(do_not_specialize=["rows", "rows_padded", "vocab_start"])
def pick_kernel(
    logits,
    partials,
    words,
    rows,
    rows_padded,
    chunks,
    width,
    row_stride,
    vocab_start,
    cap,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    LANES: tl.constexpr,
    CHUNK: tl.constexpr,
    SOFTCAP: tl.constexpr,
    INTERPRET: tl.constexpr,
):
    """Packed words of one row from its logits and the partial results of its chunks.

    ``partials`` is ``[3, rows, chunks]`` as ``shard_kernel`` leaves it, for chunks of
    ``CHUNK`` columns; ``words`` is ``[2 * K + 1, rows_padded]``. The ``K`` first
    columns lie in the ``K`` first chunks ordered by their largest values: each of those
    holds a column that comes before all columns of a later chunk.
    """
    row = tl.program_id(0).to(tl.int64)
    real = row < rows
    lanes = tl.arange(0, LANES)
    used = (lanes < chunks) & real
    at = partials + row * chunks + lanes
    best = tl.load(at, mask=used, other=float("-inf"))
    total = tl.load(at + rows.to(tl.int64) * chunks, mask=used, other=0.0)
    top = tl.max(best)
    mass = tl.sum(total * _exp_difference(_finite(best), _finite(top)))
    # With one chunk a row its log-sum-exp stands in the sum's place.
    middle = tl.where(chunks == 1, tl.sum(total), _log_sum_exp(top, mass))

    slots = tl.arange(0, SLOTS)
    chosen = tl.full([SLOTS], _NO_TOKEN, tl.int32)
    numbers = tl.where(used, lanes, _NO_TOKEN)
    value, token_id = _before_all()
    for j in range(K):  # a loop: unrolled, k = 16 took minutes to compile
        value, token_id = _next(best, numbers, value, token_id)
        chosen = tl.where(slots == j, token_id, chosen)

    # A row has fewer than K chunks where a shard is narrow.
    there = (chosen < chunks)[:, None]
    columns = tl.where(there, chosen[:, None] * CHUNK, 0) + tl.arange(0, CHUNK)[None, :]
    there = there & (columns < width)
    # 64 bits: rows * stride may reach 2^31.
    x = tl.load(logits + row * row_stride + columns, mask=there, other=0.0)
    x = x.to(tl.float32)
    if SOFTCAP:
        x = _tanh(x / cap, INTERPRET) * cap
    x = tl.where(there & (x == x), x, float("-inf"))
    ids = tl.where(there, columns + vocab_start, _NO_TOKEN)

    out = words + row
    word_stride = rows_padded.to(tl.int64)
    value, token_id = _before_all()
    for j in range(K):
        value, token_id = _next(x, ids, value, token_id)
        bits = tl.where(real, token_id, 0).to(tl.float32, bitcast=True)
        tl.store(out + j * word_stride, tl.where(real, value, 0.0))
        tl.store(out + (K + 1 + j) * word_stride, bits)
    tl.store(out + K * word_stride, tl.where(real, middle, 0.0))


@triton.jit(do_not_specialize=["last_id"])
def merge_topk_kernel(
    gathered,
    token_ids,
    logits,
    logsumexps,
    positions,
    last_id,
    word_stride,
    row_stride,
    position_stride,
    K: tl.constexpr,
    SLOTS: tl.constexpr,
    TP: tl.constexpr,
    RANKS: tl.constexpr,
):
    """Merge the words of ``TP`` ranks for one row; ``K`` ids and logits a row."""
    row = tl.program_id(0).to(tl.int64)
    word = gathered + row * row_stride
    rank = tl.arange(0, RANKS)
    slot = tl.arange(0, SLOTS)[None, :]
    own = word + rank * (2 * K + 1) * word_stride

    used = (rank < TP)[:, None] & (slot < K)
    at = own[:, None] + slot * word_stride
    values = tl.load(at, mask=used, other=float("-inf"))
    bits = tl.load(at + (K + 1) * word_stride, mask=used, other=0.0)
    # A NaN value, which no shard sends, loses to everything. A transport may set the
    # sign bit of an all-zero word; ids have none.
    used = used & (values == values)
    ids = tl.where(used, bits.to(tl.int32, bitcast=True) & _ID_BITS, _NO_TOKEN)
    values = tl.where(used, values, float("-inf"))

    part = tl.load(own + K * word_stride, mask=rank < TP, other=float("-inf"))
    top = tl.max(tl.where(part == part, part, float("-inf")))
    mass = tl.sum(_exp_difference(part, _finite(top)))
    tl.store(logsumexps + row, _log_sum_exp(top, mass))

    value, token_id = _before_all()
    for j in range(K):
        value, token_id = _next(values, ids, value, token_id)
        bounded = tl.minimum(token_id, last_id).to(tl.int64)
        tl.store(token_ids + row * K + j, bounded)
        # A transport may turn one zero into the other: both are returned as +0.0.
        tl.store(logits + row * K + j, tl.where(value == 0.0, 0.0, value))
    if positions is not None:
        position = positions + row * position_stride
        tl.store(position, tl.load(position) + 1)
