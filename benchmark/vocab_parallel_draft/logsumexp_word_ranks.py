"""What a rank measures for bench_logsumexp_word.py: three words a row against two."""

import struct
from typing import Any, Dict, List

import torch
from sampling_layer_ranks import Limits, timed_pairs
from selection_steps import Case, Shard, Step, packed_step, random_shard

from sglang.kernels.ops.speculative import shard_winner_few_rows as few_rows
from sglang.kernels.ops.speculative import shard_winner_torch as reduction
from sglang.kernels.ops.speculative.shard_winner import padded_rows
from sglang.srt.distributed.device_communicators.vocab_gather import VocabGather
from sglang.test.kits.tp_group_kit import init_group, transports


def measure(
    rank: int, world_size: int, cases: List[Case], limits: Limits
) -> List[Dict[str, Any]]:
    """Per case the steps of a block and the seconds of every pair."""
    group = init_group(rank, world_size, rank, "cpu")
    (gather,) = transports(group, "cpu").values()
    with torch.inference_mode():
        return [_measure_case(rank, group, gather, case, limits) for case in cases]


def _measure_case(
    rank: int, group: Any, gather: VocabGather, case: Case, limits: Limits
) -> Dict[str, Any]:
    shard = random_shard(rank, group.world_size, case, "cpu")
    steps = [
        two_word_step(gather, shard, case.vocab),
        packed_step(gather, shard, case.vocab),
    ]
    if not torch.equal(*(step() for step in steps)):
        raise RuntimeError(f"two and three words choose other token ids: {case}")
    block, seconds = timed_pairs(steps, limits)
    return {
        "block": block,
        "two_s": [two for two, _ in seconds],
        "three_s": [three for _, three in seconds],
    }


def two_word_step(gather: VocabGather, shard: Shard, vocab: int) -> Step:
    """``packed_step`` without the log-sum-exp: the same implementation for so many rows,
    its tiles and passes but for the exponentials, two words a row, and the same rule at
    the merge."""
    rows = shard.logits.shape[0]
    positions = torch.zeros(rows, dtype=torch.int64)

    def step() -> torch.Tensor:
        words = two_words(shard, rows)
        gathered = gather.gather_stacked(words)
        token_ids = merge_two_words(gathered, rows, vocab - 1)
        positions.add_(1)
        return token_ids

    return step


def two_words(shard: Shard, rows: int) -> torch.Tensor:
    """Largest logit and id bits, FP32 ``[2, rows_padded]``."""
    logits = shard.logits[:, : shard.valid_width]
    if few_rows.takes(logits, rows, 1, shard.valid_width):
        return _two_words_of_few_rows(logits, shard.start)
    words = logits.new_zeros((2, padded_rows(rows)), dtype=torch.float32)
    tile_rows, chunk = reduction._tile_shape(*logits.shape)
    workspace = logits.new_empty(tile_rows * chunk, dtype=torch.float32)
    values, columns = [], []
    for tile in logits.split(tile_rows):
        maxima = _block_maxima(tile, workspace, chunk)
        value, column = reduction._winner(tile, None, maxima, False)
        values.append(value)
        columns.append(column)
    words[0, :rows] = torch.cat(values)
    words.view(torch.int32)[1, :rows].copy_(torch.cat(columns)).add_(shard.start)
    return words


def _two_words_of_few_rows(logits: torch.Tensor, start: int) -> torch.Tensor:
    values, ids = [], []
    for row in logits:
        upcast = row.to(torch.float32, copy=True)
        column = few_rows._first_maximum(upcast)
        values.append(upcast[column].item())
        ids.append(column + start)
    width = padded_rows(len(ids))
    rest = (0,) * (width - len(ids))
    packed = struct.pack(f"={width}f{width}i", *values, *rest, *ids, *rest)
    return torch.frombuffer(bytearray(packed), dtype=torch.float32).view(2, -1)


def _block_maxima(
    logits: torch.Tensor, workspace: torch.Tensor, chunk: int
) -> torch.Tensor:
    rows, width = logits.shape
    blocks = -(-width // reduction.BLOCK)
    maxima = workspace.new_empty((rows, blocks))
    for start in range(0, width, chunk):
        columns = logits[:, start : start + chunk]
        values = workspace[: columns.numel()].view(columns.shape).copy_(columns)
        first = start // reduction.BLOCK
        last = -(-(start + columns.shape[1]) // reduction.BLOCK)
        reduction._block_maxima(values, out=maxima[:, first:last])
    return maxima


def merge_two_words(gathered: torch.Tensor, rows: int, last_id: int) -> torch.Tensor:
    """Token ids int64 ``[rows]``: largest value, then smallest id."""
    if few_rows.takes(gathered, rows, 1):
        return _merge_few_rows(gathered, rows, last_id)
    words = gathered.unflatten(0, (-1, 2))[:, :, :rows]
    value = words[:, 0]
    ids = words[:, 1].contiguous().view(torch.int32) & 0x7FFFFFFF
    candidates = torch.where(value == value.amax(dim=0), ids, reduction.NO_TOKEN)
    return candidates.amin(dim=0).clamp_(max=last_id).long()


def _merge_few_rows(gathered: torch.Tensor, rows: int, last_id: int) -> torch.Tensor:
    values, bits = gathered[::2].tolist(), gathered.view(torch.int32)[1::2].tolist()
    token_ids = []
    for row in range(rows):
        best = max(value[row] for value in values)
        tied = (
            word[row] & 0x7FFFFFFF
            for value, word in zip(values, bits)
            if value[row] == best
        )
        token_ids.append(min(min(tied), last_id))
    return torch.tensor(token_ids)
