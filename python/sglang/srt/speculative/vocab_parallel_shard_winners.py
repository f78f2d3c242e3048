"""Winners over a vocabulary that is split over a tensor-parallel group.

Block drafters (DFlash, Domino, DSpark) pick their tokens outside the logits processor,
from logits of the target's head. ``ShardWinners`` is what they share: the reduction of
a rank's shard, one exchange, and the merge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.distributed.device_communicators.vocab_gather import VocabGather
from sglang.srt.speculative.draft_confidence import selected_probability


class Winners(NamedTuple):
    """Of every row, over the whole vocabulary; the same bits on every rank."""

    token_ids: torch.Tensor
    """int64 ``[rows]``."""
    logits: torch.Tensor
    """FP32 ``[rows]``."""
    logsumexp: torch.Tensor
    """FP32 ``[rows]``."""

    def probability(self) -> torch.Tensor:
        """Softmax probability of the winners, FP32 ``[rows]``."""
        return selected_probability(self.logits, self.logsumexp)


class ShardWinners:
    """A rank's columns ``[start, start + width)`` of a vocabulary, and the exchange.

    ``vocab_size`` is the number of ids that can win: a draft vocabulary smaller than
    the head's leaves the columns past it out, on the last ranks maybe all.
    """

    def __init__(self, head: Any, vocab_size: int, gather: VocabGather, transport: str):
        shard = head.shard_indices
        self.start: int = int(shard.org_vocab_start_index)
        end = min(int(shard.org_vocab_end_index), vocab_size)
        self.width: int = max(0, end - self.start)
        self.vocab_size = vocab_size
        self.gather = gather
        self.transport = transport

    def words(self, logits: torch.Tensor) -> torch.Tensor:
        """Packed words FP32 ``[3, rows_padded]`` of the shard's logits.

        ``logits`` is ``[rows, columns]``; columns past ``width`` are padding.
        """
        return shard_winner(logits, valid_width=self.width, vocab_start=self.start)

    def merge(self, words: torch.Tensor, rows: int) -> Winners:
        """Exchange the words of ``rows`` rows; one collective."""
        gathered = self.gather.gather_stacked(words)
        return Winners(
            *merge_shard_winners(gathered, rows=rows, vocab_size=self.vocab_size)
        )

    def select(self, logits: torch.Tensor) -> Winners:
        """Winners of ``logits`` ``[rows, columns]``, at least one row."""
        return self.merge(self.words(logits), logits.shape[0])
