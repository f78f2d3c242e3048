"""DSpark's greedy Markov steps drafted with one packed exchange a step.

The dense path gathers the base logits of the whole block and adds every step's bias on
every rank. Here each rank keeps its shard of the base logits, adds the bias of its own
columns, and the ranks exchange winners. The token that a step yields is the merged one,
so that every rank feeds the same token to the next step.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F

from sglang.srt.speculative.vocab_parallel_shard_winners import ShardWinners


class PackedMarkov:
    """The greedy draft steps of one Markov head over a vocabulary shard."""

    def __init__(self, winners: ShardWinners):
        self.winners = winners

    def local_rows(self, weight: torch.Tensor) -> torch.Tensor:
        """The rows of ``weight`` ``[vocabulary, ...]`` that bias this rank's columns."""
        start = self.winners.start
        return weight[start : start + self.winners.width]

    def local_bias(self, weight: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        """Bias ``[rows, width]`` of this rank's columns."""
        return F.linear(latent, self.local_rows(weight))

    def step(
        self,
        step: int,
        markov_head: Any,
        base_logits: torch.Tensor,
        prev_tokens: torch.Tensor,
        state: Optional[torch.Tensor],
        hidden_states: Optional[torch.Tensor],
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """Tokens int64 ``[rows]`` of a step, and the state that the next one reads.

        ``base_logits`` is this rank's shard ``[rows, columns]``, ``prev_tokens`` the
        global ids of the step before, ``[rows]``.
        """
        bias, state = markov_head.step_bias(
            prev_tokens, hidden_states=hidden_states, state=state
        )
        # Rounded as the dense step rounds: one addition, in the step's dtype.
        dtype = markov_head.step_logits_dtype(base_logits.dtype)
        columns = self._columns(markov_head, bias)
        logits = base_logits[:, : self.winners.width] + columns.to(dtype)
        drafted = self.winners.select(logits)
        if markov_head.draft_probability is not None:
            markov_head.draft_probability.add(step, drafted.probability())
        return drafted.token_ids, state

    def _columns(self, markov_head: Any, bias: torch.Tensor) -> torch.Tensor:
        """This rank's columns of a bias, which a quantised head gives whole."""
        start, width = self.winners.start, self.winners.width
        if bias.shape[1] == markov_head.vocab_size:
            return bias[:, start : start + width]
        return bias[:, :width]
