"""Torch path of ``shard_winner`` and ``merge_shard_winners``, made for CPU tensors.

The shard is read once, in tiles of rows and chunks of columns that are upcast into one
small FP32 workspace. Every pass over the workspace is a vectorised torch operation.
The callers in ``shard_winner.py`` check the arguments.
"""

from typing import Callable, Optional, Tuple

import torch

# Measured with benchmark/vocab_parallel_draft/bench_workspace.py: the FP32 workspace
# stays in the cache, and each torch operation has enough to do. The same for any number of
# threads: ranks that reduce the same logits get the same bits.
WORKSPACE_ELEMENTS = 1 << 19
_MIN_CHUNK_COLUMNS = 1024
BLOCK = 128
"""Columns of a block: the winner's block is found first, its column after."""

Tensors = Tuple[torch.Tensor, ...]
Select = Callable[[torch.Tensor, Optional[float], torch.Tensor, bool], Tensors]
"""Values and columns of a tile's winners from its logits ``[rows, width]``, the
softcap, the maxima of its blocks ``[rows, blocks]``, and whether to mask NaN."""

NO_TOKEN = 2**31 - 1
"""Id of an empty shard: it loses every tie, and the merge clamps it."""

LOWEST = float("-inf")
"""Stands for NaN, and for a column that is not there."""

FLOAT32_MAX = torch.finfo(torch.float32).max
# exp2 is the vectorised exponential of torch on the CPU; exp took 4.5 times as long.
LOG2_E = 1.4426950408889634


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
        words[:2, :rows] = LOWEST
        ids.fill_(NO_TOKEN)
    elif rows:
        logits = logits[:, :valid_width]
        value, column, logsumexp = reduce_tiles(logits, softcap, _winner)
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
    numbers = value.nan_to_num(LOWEST, posinf=-LOWEST, neginf=LOWEST)
    best = numbers.amax(dim=0)
    candidates = torch.where(value == best, ids, NO_TOKEN)
    token_ids = candidates.amin(dim=0).clamp_(max=last_id).long()

    write_step(token_ids, draft_tokens, column, positions)
    return token_ids, best + 0.0, torch.logsumexp(logsumexp, dim=0)


def write_step(
    token_ids: torch.Tensor,
    draft_tokens: Optional[torch.Tensor] = None,
    column: int = 0,
    positions: Optional[torch.Tensor] = None,
) -> None:
    """What a draft step does with its ids ``[rows]``, in place."""
    rows = token_ids.shape[0]
    if draft_tokens is not None:
        draft_tokens[:rows, column] = token_ids
    if positions is not None:
        positions[:rows] += 1


def reduce_tiles(
    logits: torch.Tensor, softcap: Optional[float], select: Select
) -> Tensors:
    """What ``select`` finds in each row, and the log-sum-exp FP32 ``[rows]``."""
    rows, width = logits.shape
    tile_rows, chunk = _tile_shape(rows, width)
    workspace = logits.new_empty(tile_rows * chunk, dtype=torch.float32)
    on_cpu = logits.device.type == "cpu"
    parts = []
    for tile in logits.split(tile_rows):
        options = (softcap, workspace, chunk, select)
        part = _reduce_tile(tile, *options, careful=not on_cpu)
        # On the CPU a look at the result is cheaper than care for every logit.
        if on_cpu and not part[-1].isfinite().all():
            odd = ~part[-1].isfinite()
            again = _reduce_tile(tile[odd], *options, careful=True)
            for field, of_odd_rows in zip(part, again):
                field[odd] = of_odd_rows
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return tuple(torch.cat(field) for field in zip(*parts))


def _tile_shape(rows: int, width: int) -> Tuple[int, int]:
    """Rows and columns that the FP32 workspace holds at a time."""
    chunk = max(WORKSPACE_ELEMENTS // rows // BLOCK * BLOCK, _MIN_CHUNK_COLUMNS)
    return min(WORKSPACE_ELEMENTS // chunk, rows), min(chunk, width)


def _reduce_tile(
    logits: torch.Tensor,
    softcap: Optional[float],
    workspace: torch.Tensor,
    chunk: int,
    select: Select,
    careful: bool,
) -> Tensors:
    """``reduce_tiles`` of a few rows, in one read of their logits.

    Without ``careful`` a row that holds a NaN, or a maximum that is not finite or nearly
    so, gets a log-sum-exp that is not finite, and its winners mean nothing.
    """
    rows, width = logits.shape
    maxima = workspace.new_empty((rows, -(-width // BLOCK)))
    starts = range(0, width, chunk)
    sums = workspace.new_empty((len(starts), rows))
    shifts = torch.empty_like(sums, dtype=torch.float64)
    for i, start in enumerate(starts):
        columns = logits[:, start : start + chunk]
        # Contiguous, so that tanh rounds here as it does in the dense path.
        values = workspace[: columns.numel()].view(columns.shape)
        capped(values.copy_(columns), softcap)
        numbers = torch.where(values.isnan(), LOWEST, values) if careful else values
        blocks = maxima[:, start // BLOCK : -(-(start + columns.shape[1]) // BLOCK)]
        _block_maxima(numbers, out=blocks)
        shifts[i] = _shift_exponents(values, blocks.amax(dim=1), careful)
        sums[i] = _row_sums(values.exp2_())

    shift = shifts.amax(dim=0)
    total = (shifts.sub_(shift).exp_().mul_(sums)).sum(dim=0)
    winners = select(logits, softcap, maxima, careful)
    return *winners, total.log_().add_(shift).float()


def _row_sums(values: torch.Tensor) -> torch.Tensor:
    """Sums FP32 ``[rows]`` that do not depend on the number of threads."""
    return values.sum(dim=1) if len(values) > 1 else row_sum(values[0])


def row_sum(values: torch.Tensor) -> torch.Tensor:
    """Sum of one row ``[width]``, block by block: torch splits a long one's by threads."""
    whole = values.shape[0] // BLOCK * BLOCK
    total = values[:whole].view(-1, BLOCK).sum(dim=1).sum()
    return total + values[whole:].sum() if whole < values.shape[0] else total


def _shift_exponents(
    values: torch.Tensor, top: torch.Tensor, careful: bool
) -> torch.Tensor:
    """Logits FP32 ``[rows, columns]`` to exponents of two in place, 0 at the maximum.

    Args:
        top: their maxima ``[rows]``.
        careful: two passes instead of one; without, magnitudes past 2e38 overflow.

    Returns:
        What was subtracted from the logits, FP64 ``[rows]``.
    """
    if careful:
        shift = _finite(top)
        values.sub_(shift.unsqueeze(1)).mul_(LOG2_E)
        return shift.double()
    shift = _finite(top.mul_(LOG2_E))
    torch.add(shift.neg().unsqueeze(1), values, alpha=LOG2_E, out=values)
    # Rounded, and so not the maximum any more: what was subtracted is what counts.
    return shift.double().div_(LOG2_E)


def _block_maxima(values: torch.Tensor, out: torch.Tensor) -> None:
    """Maximum of every ``BLOCK`` columns; the last block may be narrower."""
    width = values.shape[1]
    whole = width // BLOCK
    if whole:
        blocks = values[:, : whole * BLOCK].unflatten(1, (whole, BLOCK))
        torch.amax(blocks, dim=2, out=out[:, :whole])
    if width % BLOCK:
        torch.amax(values[:, whole * BLOCK :], dim=1, out=out[:, whole])


def _winner(
    logits: torch.Tensor,
    softcap: Optional[float],
    maxima: torch.Tensor,
    mask_nan: bool,
) -> Tensors:
    """``Select`` of the largest logit and its first column, FP32 and int64 ``[rows]``."""
    block = _first_maximum(maxima)
    value = maxima.gather(1, block.unsqueeze(1)).squeeze(1)
    start = block.mul_(BLOCK)
    columns = start.unsqueeze(1) + torch.arange(BLOCK, device=logits.device)
    columns.clamp_(max=logits.shape[1] - 1)
    values = ranked(logits.gather(1, columns), softcap, mask_nan)
    return value, _first_maximum(values).add_(start)


def _first_maximum(values: torch.Tensor) -> torch.Tensor:
    """First column of every row's maximum, int64 ``[rows]``."""
    if values.device.type == "cpu":
        return values.argmax(dim=1)
    # On CUDA argmax may give any of the equal ones.
    width = values.shape[1]
    is_top = values == values.amax(dim=1, keepdim=True)
    columns = torch.arange(width, device=values.device)
    return torch.where(is_top, columns, width - 1).amin(dim=1)


def ranked(
    logits: torch.Tensor, softcap: Optional[float], mask_nan: bool
) -> torch.Tensor:
    """FP32 values as they are compared: softcapped, NaN as the lowest if masked."""
    values = capped(logits.float(), softcap)
    return torch.where(values.isnan(), LOWEST, values) if mask_nan else values


def capped(values: torch.Tensor, softcap: Optional[float]) -> torch.Tensor:
    """Softcap FP32 values in place, in the dense path's order of operations."""
    if softcap is None:
        return values
    return values.div_(softcap).tanh_().mul_(softcap)


def _finite(value: torch.Tensor) -> torch.Tensor:
    """Shift of an exponent: infinities become the nearest finite number."""
    return value.clamp(-FLOAT32_MAX, FLOAT32_MAX)
