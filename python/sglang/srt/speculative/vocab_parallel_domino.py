"""Domino's first tokens and candidate pool in one packed exchange.

Dense takes two gathers for the first tokens and two for the pool, or gathers the base
logits whole where they are few. Both the winner of the first step and the candidates of
the later ones follow from the same base logits, so that one gather carries them all;
the candidates' base logits are then summed over the ranks as in the dense path.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch

from sglang.kernels.ops.speculative.shard_winner import merge_shard_winners
from sglang.srt.speculative.vocab_parallel_shard_winners import ShardWinners, Winners

_WORDS = 3
_VECTOR_WORDS = 4
"""A transport may want rows of a multiple of 16 bytes."""


class PackedDomino:
    """The exchange of a Domino block over the head's tensor-parallel group."""

    first: Optional[Winners] = None
    """The first step of the last eager block, and nothing of a replayed one; later
    steps score the pool alone and have no probability over the vocabulary."""

    def __init__(self, winners: ShardWinners):
        self.winners = winners

    def open_block(
        self, local_logits: torch.Tensor, pool_size: int, group: Any
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor], Optional[torch.Tensor]]:
        """First tokens, candidate ids and the candidates' base logits of a block.

        Args:
            local_logits: this rank's base logits ``[steps, rows, columns]``.
            pool_size: candidates of a row, below the vocabulary size.
            group: the head's tensor-parallel group.

        Returns:
            int64 ``[rows]``; int64 ``[rows, pool_size]`` and ``[steps - 1, rows,
            pool_size]`` in the logits' dtype, ``None`` for a block of one step.
        """
        rows = local_logits.shape[1]
        words = self.winners.words(local_logits[0])[:, :rows].T
        later = local_logits[1:, :, : self.winners.width]
        if later.shape[0] == 0:
            self.first, _ = self._exchange(words, rows)
            return self.first.token_ids, None, None
        scores, ids = self._local_pool(later, pool_size, local_logits.shape[2])
        packed = torch.cat(
            (words, scores.float(), ids.to(torch.int32).view(torch.float32)), dim=1
        )
        self.first, ranks = self._exchange(packed, rows)
        candidates = self._global_pool(ranks, scores, pool_size)
        base = group.all_reduce(self._owned_logits(later, candidates))
        return self.first.token_ids, candidates, base

    def _exchange(
        self, packed: torch.Tensor, rows: int
    ) -> Tuple[Winners, torch.Tensor]:
        """Winners of the leading words, and all words ``[tp, rows, words]``."""
        padding = -packed.shape[1] % _VECTOR_WORDS
        packed = torch.nn.functional.pad(packed, (0, padding)).contiguous()
        gathered = self.winners.gather.gather_stacked(packed).unflatten(0, (-1, rows))
        leading = gathered[:, :, :_WORDS].transpose(1, 2).flatten(0, 1)
        merged = merge_shard_winners(
            leading, rows=rows, vocab_size=self.winners.vocab_size
        )
        return Winners(*merged), gathered

    def _local_pool(
        self, later: torch.Tensor, pool_size: int, columns: int
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Best scores and ids ``[rows, k]`` of this shard; k is the same on every rank.

        A score is the largest base logit of a token over the steps. A shard narrower
        than its neighbours fills up with -inf, which the dense path does by masking.
        """
        scores = later.amax(dim=0)
        filler = columns - scores.shape[1]
        scores = torch.nn.functional.pad(scores, (0, filler), value=float("-inf"))
        best = torch.topk(scores, k=min(pool_size, columns), dim=-1, sorted=False)
        return best.values, best.indices + self.winners.start

    def _global_pool(
        self, ranks: torch.Tensor, scores: torch.Tensor, pool_size: int
    ) -> torch.Tensor:
        """Ids ``[rows, pool_size]`` of the best candidates of all ranks.

        ``torch.topk`` picks among equal scores as it likes: it is given the order and
        the dtype that the dense path gives it, so that it picks the same.
        """
        k = scores.shape[1]
        values = ranks[:, :, _WORDS : _WORDS + k].transpose(0, 1).flatten(1)
        ids = ranks[:, :, _WORDS + k : _WORDS + 2 * k].transpose(0, 1).flatten(1)
        # The push plane sets the sign bit of an all-zero word; ids have none.
        ids = ids.contiguous().view(torch.int32) & 0x7FFFFFFF
        best = torch.topk(values.to(scores.dtype), k=pool_size, dim=-1, sorted=False)
        return ids.long().gather(1, best.indices)

    def _owned_logits(
        self, later: torch.Tensor, candidates: torch.Tensor
    ) -> torch.Tensor:
        """Base logits ``[steps, rows, pool]`` of this rank's candidates, else 0."""
        column = candidates - self.winners.start
        owned = (column >= 0) & (column < self.winners.width)
        index = column.where(owned, 0).expand(later.shape[0], -1, -1)
        return later.gather(2, index).where(owned, 0).contiguous()
