"""What a draft step leaves to the launch that merges its winners.

After the argmax a topk=1 draft step writes the tokens into their column, advances the
positions and fills ``topk_p`` with ones. Here the merge of the winners does the first
two, and the third is a view of a constant, so that nothing is launched after the merge.

The step travels on the ``ForwardBatch`` that it belongs to: a forward that fails, or
another batch's, cannot find it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Optional

import torch

STEP_ATTRIBUTE = "vocab_parallel_draft_step"
"""Of a ``ForwardBatch``; ``LogitsProcessor.forward`` reads it."""

CONSTANT_ROWS = 4096
"""Rows of the constant ``topk_p``: 16 KiB. More rows get a tensor of their own."""

_ones: Dict[torch.device, torch.Tensor] = {}


@dataclass
class DraftStep:
    """Buffers of one step: ``draft_tokens`` int64 ``[rows, steps]``, ``positions``
    int64 ``[rows]``; ``done`` once the merge has written to them."""

    positions: torch.Tensor
    draft_tokens: Optional[torch.Tensor]
    column: int
    done: bool = False

    def claim(self, rows: int) -> Dict[str, Any]:
        """Arguments of the one merge that does the step's work.

        Empty where the forward ran on other rows than the step's (padding), and after
        the first claim.
        """
        buffers = (self.positions, self.draft_tokens)
        fits = all(x is None or x.shape[0] == rows for x in buffers)
        if self.done or not fits:
            return {}
        self.done = True
        return dict(
            positions=self.positions,
            draft_tokens=self.draft_tokens,
            column=self.column,
        )

    def finish(self, positions: torch.Tensor, token_ids: torch.Tensor) -> None:
        """What the merge did not do. ``positions`` are those of the batch now."""
        if not self.done and self.draft_tokens is not None:
            self.draft_tokens[:, self.column].copy_(token_ids)
        # A forward may have replaced the batch's positions by a copy.
        if not self.done or positions.data_ptr() != self.positions.data_ptr():
            positions.add_(1)


def begin_step(
    forward_batch: Any, draft_tokens: Optional[torch.Tensor], column: int
) -> None:
    """Let the merge of ``forward_batch``'s next forward do a draft step's work.

    It advances the batch's positions and writes the ids to ``draft_tokens[:, column]``
    (int64 ``[rows, steps]``), both in place.
    """
    step = DraftStep(forward_batch.positions, draft_tokens, column)
    setattr(forward_batch, STEP_ATTRIBUTE, step)


def finish_step(
    token_ids: torch.Tensor,
    forward_batch: Any,
    draft_tokens: Optional[torch.Tensor],
    column: int,
) -> None:
    """Do what the merge left, all of it if no step was begun; the step is over."""
    positions = forward_batch.positions
    step = getattr(forward_batch, STEP_ATTRIBUTE, None)
    step = step or DraftStep(positions, draft_tokens, column)
    setattr(forward_batch, STEP_ATTRIBUTE, None)
    step.finish(positions, token_ids)


def reserve_ones(device: str) -> None:
    """Make the constant, before graph capture: it must not lie in a graph's pool."""
    ones = torch.ones((CONSTANT_ROWS, 1), device=device)
    _ones.setdefault(ones.device, ones)


def ones_column(rows: int, device: torch.device) -> torch.Tensor:
    """FP32 ones ``[rows, 1]``, to be read only."""
    held = _ones.get(device)
    if held is None or rows > held.shape[0]:
        return torch.ones((rows, 1), device=device)
    return held[:rows]
