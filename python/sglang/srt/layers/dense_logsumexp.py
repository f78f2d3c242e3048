"""Log-sum-exp of gathered logits, with the bits that a sharded vocabulary gives.

The packed path reduces every shard on its rank and merges the results in rank order.
Here one rank has all columns, and does the same with the same kernels: each shard's
columns are reduced by themselves, and the results are merged in the same order.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)


class VocabShards(NamedTuple):
    """How a vocabulary is split: ``count`` shards of ``width`` columns, padding of the
    last ones included. ``width`` 0: one shard, whatever its width."""

    count: int = 1
    width: int = 0


def shards_of(head: Any) -> VocabShards:
    """The split of a vocabulary-parallel LM head, one shard for any other head."""
    shard = getattr(head, "shard_indices", None)
    if shard is None:
        return VocabShards()
    return VocabShards(head.tp_size, shard.num_elements_padded)


def dense_logsumexp(
    logits: torch.Tensor,
    shards: VocabShards = VocabShards(),
    head_dtype: Optional[torch.dtype] = None,
) -> torch.Tensor:
    """Log-sum-exp of every row, as the packed path computes it.

    Equal bits need the rows of the packed path's call as well: how a reduction is split
    follows from the number of rows.

    Args:
        logits: ``[rows, vocab]`` bf16, fp16 or fp32, unit column stride.
        shards: the split of the head.
        head_dtype: on CUDA the dtype of the head's logits, which ``logits`` hold in
            FP32: the kernels take more columns at a time of a narrow dtype. ``None``
            for the dtype of ``logits``, and where a softcap made them FP32 values.

    Returns:
        FP32 ``[rows]``; NaN where a row holds a NaN.
    """
    rows, vocab = logits.shape
    if rows == 0:
        return logits.new_empty(0, dtype=torch.float32)
    width = shards.width or vocab
    words = []
    for start in range(0, shards.count * width, width):
        valid = max(0, min(width, vocab - start))
        shard = logits[:, min(start, vocab) : start + valid]
        if logits.is_cuda:
            shard = _as_head_output(shard, width, head_dtype or logits.dtype)
        words.append(
            shard_winner(shard, valid_width=valid, vocab_start=min(start, vocab))
        )
    gathered = torch.cat(words)
    return merge_shard_winners(gathered, rows=rows, vocab_size=vocab)[2]


def _as_head_output(
    shard: torch.Tensor, width: int, dtype: torch.dtype
) -> torch.Tensor:
    """The shard as its rank's head put it out: the kernels' order of additions depends
    on dtype, alignment and row stride."""
    logits = shard.new_empty((shard.shape[0], width), dtype=dtype)
    logits[:, : shard.shape[1]].copy_(shard)
    return logits


class DenseLogsumexp:
    """What a logits processor calls for the log-sum-exp of its gathered logits."""

    def __init__(self, shards: VocabShards, head_dtype: Optional[torch.dtype] = None):
        self.shards = shards
        self.head_dtype = head_dtype

    def __call__(
        self, logits: torch.Tensor, sample_indices: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """Log-sum-exp of the rows to hand on, FP32; all of them are reduced, as on the
        packed path."""
        logsumexp = dense_logsumexp(logits, self.shards, self.head_dtype)
        return logsumexp if sample_indices is None else logsumexp[sample_indices]
