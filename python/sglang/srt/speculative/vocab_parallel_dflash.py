"""DFlash blocks drafted with one packed exchange.

The dense path exchanges the largest logit of every rank and its id, in two gathers.
Both the sampler in the draft's CUDA graph and its eager twin have a counterpart here.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from sglang.srt.speculative.vocab_parallel_shard_winners import ShardWinners, Winners

_EAGER_ROWS = 256
"""Rows that the dense eager path multiplies by the head at a time: a product over
other rows may round differently. A multiple of the words' row alignment."""


class PackedDFlash:
    """Drafts the tokens of DFlash blocks with the target's head."""

    def __init__(self, head: Any, winners: ShardWinners):
        self.head = head
        self.winners = winners

    def sample(self, hidden_states: torch.Tensor, lm_head: Any) -> torch.Tensor:
        """Token ids int64 ``[rows]`` of hidden states ``[rows, hidden]``.

        Raises:
            RuntimeError: ``lm_head`` is not the head that eligibility was decided for.
        """
        if lm_head is not self.head:
            raise RuntimeError(
                "the target model changed its LM head after start-up; restart with "
                "--speculative-vocab-parallel-draft off"
            )
        rows = hidden_states.shape[0]
        words = [
            self.winners.words(self._logits(chunk))
            for chunk in hidden_states.split(_EAGER_ROWS)
        ]
        return self.winners.merge(torch.cat(words, dim=1), rows).token_ids

    def graph_sampler(self, block_size: int, max_bs: int) -> PackedDFlashSampler:
        """What the draft's CUDA graph runs at its end."""
        return PackedDFlashSampler(self, int(block_size), int(max_bs))

    def select(self, hidden_states: torch.Tensor) -> Winners:
        """Winners of hidden states ``[rows, hidden]`` in one product.

        Under the logits that the draft picks from: DFlash applies neither the target's
        scale nor its softcap.
        """
        return self.winners.select(self._logits(hidden_states))

    def _logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        weight = self.head.weight
        # An empty shard keeps a column, which is padding.
        columns = max(self.winners.width, 1)
        return torch.matmul(hidden_states.to(weight.dtype), weight[:columns].T)


class PackedDFlashSampler:
    """Drafts inside the draft's CUDA graph, into buffers that stay where they are."""

    def __init__(self, draft: PackedDFlash, block_size: int, max_bs: int):
        self.draft = draft
        self.block_size = block_size
        rows, device = max_bs * (block_size - 1), draft.head.weight.device
        self.out = torch.empty(rows, dtype=torch.int64, device=device)
        """Token ids, block by block; the rows past the real batch mean nothing."""

    def __call__(
        self, hidden_states: torch.Tensor, input_ids: Optional[torch.Tensor] = None
    ) -> None:
        """``hidden_states`` ``[bs * block_size, hidden]``; position 0 of a block is the
        token that it starts from."""
        blocks = hidden_states.unflatten(0, (-1, self.block_size))
        token_ids = self.draft.select(blocks[:, 1:].flatten(0, 1)).token_ids
        self.out[: token_ids.shape[0]].copy_(token_ids)
