"""Torch path of ``shard_winner`` and ``merge_shard_winners``, made for CPU tensors.

The shard is read once, in tiles of rows and chunks of columns that are upcast into one
small FP32 workspace. Every pass over the workspace is a vectorised torch operation.
The callers in ``shard_winner.py`` check the arguments.
"""

from typing import Optional, Tuple

import torch

# Measured with benchmark/vocab_parallel_draft/bench_workspace.py: the FP32 workspace of
# a thread stays in its cache, and each torch operation has enough to do.
_WORKSPACE_ELEMENTS = 1 << 19
_WORKSPACE_THREADS = 2
_MIN_CHUNK_COLUMNS = 1024
# The winner's block of columns is found first, its column after.
_BLOCK = 128

NO_TOKEN = 2**31 - 1
"""Id of an empty shard: it loses every tie, and the merge clamps it."""

_LOWEST = float("-inf")
_FLOAT32_MAX = torch.finfo(torch.float32).max
# exp2 is the vectorised exponential of torch on the CPU; exp took 4.5 times as long.
_LOG2_E = 1.4426950408889634


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
    words = logits.new_zeros((3, rows_padded), dtype=torch.float32)
    ids = words.view(torch.int32)[2, :rows]
    if valid_width == 0:
        words[:2, :rows] = _LOWEST
        ids.fill_(NO_TOKEN)
    elif rows:
        value, column, logsumexp = _reduce(logits[:, :valid_width], softcap)
        words[0, :rows] = value
        words[1, :rows] = logsumexp
        ids.copy_(column).add_(vocab_start)
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
    words = gathered.unflatten(0, (-1, 3))[:, :, :rows]
    value, logsumexp = words[:, 0], words[:, 1]
    # A transport may set the sign bit of an all-zero word; ids have none.
    ids = words[:, 2].contiguous().view(torch.int32) & 0x7FFFFFFF

    # A NaN value, which no shard sends, loses to everything: it equals nothing.
    numbers = value.nan_to_num(_LOWEST, posinf=-_LOWEST, neginf=_LOWEST)
    best = numbers.amax(dim=0)
    candidates = torch.where(value == best, ids, NO_TOKEN)
    token_ids = candidates.amin(dim=0).clamp_(max=last_id).long()

    if draft_tokens is not None:
        draft_tokens[:rows, column] = token_ids
    if positions is not None:
        positions[:rows] += 1
    return token_ids, best + 0.0, torch.logsumexp(logsumexp, dim=0)


def _reduce(
    logits: torch.Tensor, softcap: Optional[float]
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Value FP32, column int64 and log-sum-exp FP32, each ``[rows]``."""
    rows, width = logits.shape
    tile_rows, chunk = _tile_shape(rows, width)
    workspace = logits.new_empty(tile_rows * chunk, dtype=torch.float32)
    on_cpu = logits.device.type == "cpu"
    parts = []
    for tile in logits.split(tile_rows):
        part = _reduce_tile(tile, softcap, workspace, chunk, mask_nan=not on_cpu)
        # On the CPU a look at the result is cheaper than masking every logit.
        if on_cpu and part[2].isnan().any():
            part = _reduce_tile(tile, softcap, workspace, chunk, mask_nan=True)
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    value, column, logsumexp = (torch.cat(field) for field in zip(*parts))
    return value, column, logsumexp


def _tile_shape(rows: int, width: int) -> Tuple[int, int]:
    """Rows and columns that the FP32 workspace holds at a time."""
    elements = _WORKSPACE_ELEMENTS * min(torch.get_num_threads(), _WORKSPACE_THREADS)
    chunk = max(elements // rows // _BLOCK * _BLOCK, _MIN_CHUNK_COLUMNS)
    return min(elements // chunk, rows), min(chunk, width)


def _reduce_tile(
    logits: torch.Tensor,
    softcap: Optional[float],
    workspace: torch.Tensor,
    chunk: int,
    mask_nan: bool,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``_reduce`` of a few rows, in one read of their logits.

    Without ``mask_nan`` a row that holds a NaN gets a NaN log-sum-exp, and its value
    and column mean nothing.
    """
    rows, width = logits.shape
    maxima = workspace.new_empty((rows, -(-width // _BLOCK)))
    starts = range(0, width, chunk)
    tops = workspace.new_empty((len(starts), rows))
    sums = torch.empty_like(tops)
    for i, start in enumerate(starts):
        columns = logits[:, start : start + chunk]
        # Contiguous, so that tanh rounds here as it does in the dense path.
        values = workspace[: columns.numel()].view(columns.shape)
        _capped(values.copy_(columns), softcap)
        ranked = torch.where(values.isnan(), _LOWEST, values) if mask_nan else values
        blocks = maxima[:, start // _BLOCK : -(-(start + columns.shape[1]) // _BLOCK)]
        _block_maxima(ranked, out=blocks)
        torch.amax(blocks, dim=1, out=tops[i])
        values.sub_(_finite(tops[i]).unsqueeze(1)).mul_(_LOG2_E).exp2_()
        torch.sum(values, dim=1, out=sums[i])

    value = tops.amax(dim=0)
    block_start = _first_maximum(maxima).mul_(_BLOCK)
    column = _column_in_block(logits, softcap, block_start, mask_nan)
    shift = _finite(value)
    total = (tops.sub_(shift).mul_(_LOG2_E).exp2_().mul_(sums)).sum(dim=0)
    return value, column, total.log_().add_(shift)


def _block_maxima(values: torch.Tensor, out: torch.Tensor) -> None:
    """Maximum of every ``_BLOCK`` columns; the last block may be narrower."""
    width = values.shape[1]
    whole = width // _BLOCK
    if whole:
        blocks = values[:, : whole * _BLOCK].unflatten(1, (whole, _BLOCK))
        torch.amax(blocks, dim=2, out=out[:, :whole])
    if width % _BLOCK:
        torch.amax(values[:, whole * _BLOCK :], dim=1, out=out[:, whole])


def _column_in_block(
    logits: torch.Tensor,
    softcap: Optional[float],
    start: torch.Tensor,
    mask_nan: bool,
) -> torch.Tensor:
    """First column of the maximum of the block at ``start`` (int64 ``[rows]``)."""
    columns = start.unsqueeze(1) + torch.arange(_BLOCK, device=logits.device)
    columns.clamp_(max=logits.shape[1] - 1)
    values = _capped(logits.gather(1, columns).float(), softcap)
    if mask_nan:
        values = torch.where(values.isnan(), _LOWEST, values)
    return _first_maximum(values).add_(start)


def _first_maximum(values: torch.Tensor) -> torch.Tensor:
    """First column of every row's maximum, int64 ``[rows]``."""
    if values.device.type == "cpu":
        return values.argmax(dim=1)
    # On CUDA argmax may give any of the equal ones.
    width = values.shape[1]
    is_top = values == values.amax(dim=1, keepdim=True)
    columns = torch.arange(width, device=values.device)
    return torch.where(is_top, columns, width - 1).amin(dim=1)


def _capped(values: torch.Tensor, softcap: Optional[float]) -> torch.Tensor:
    """Softcap FP32 values in place, in the dense path's order of operations."""
    if softcap is None:
        return values
    return values.div_(softcap).tanh_().mul_(softcap)


def _finite(value: torch.Tensor) -> torch.Tensor:
    """Shift of an exponent: infinities become the nearest finite number."""
    return value.clamp(-_FLOAT32_MAX, _FLOAT32_MAX)
