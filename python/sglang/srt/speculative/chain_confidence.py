"""Probabilities of a drafted chain, from the draft's logits to the worker's result.

A chain's first token, the seed, is selected by the draft extend (or prefill) before its
draft loop: its probability travels from there in ``EagleDraftInput.draft_probability``,
FP32 ``[bs, 1]``. Multi-layer MTP selects all tokens there: ``[bs, steps]``. Captured
graphs write into one static buffer, which is read right after a replay.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from sglang.srt.speculative.draft_confidence import selected_probability


def token_probability(
    output: Any, token_ids: torch.Tensor, rows: Optional[torch.Tensor] = None
) -> torch.Tensor:
    """Exact probability of selected tokens, FP32 ``[rows, 1]``.

    Args:
        output: a draft's ``LogitsProcessorOutput``, packed or dense, whose
            ``logits_logsumexp`` was computed.
        token_ids: int64 ``[rows, 1]``, ids of the draft's vocabulary.
        rows: int64, the rows of ``output`` that ``token_ids`` belong to; ``None``
            where they are all of them.

    Raises:
        RuntimeError: the log-sum-exp was lost on the way.
    """
    logits, logsumexp = output.next_token_logits, output.logits_logsumexp
    if logsumexp is None or logsumexp.shape[0] != logits.shape[0]:
        raise RuntimeError(
            "logits_logsumexp is missing or has other rows than next_token_logits: the "
            "code that rebuilt the LogitsProcessorOutput did not carry draft_fields()"
        )
    if rows is not None:
        logits, logsumexp = logits[rows], logsumexp[rows]
    if output.logits_token_ids is None:
        logits = logits.gather(1, token_ids).float()
    return selected_probability(logits, logsumexp.unsqueeze(-1))


def carried(draft_input: Any, rows: int) -> Optional[torch.Tensor]:
    """What a draft input carries for its ``rows`` requests, padding left out; ``None``
    if there are none.

    Raises:
        RuntimeError: it was lost on the way.
    """
    if rows == 0:
        return None
    if draft_input.draft_probability is None:
        raise RuntimeError(
            "draft_probability is missing in a draft input: the code that rebuilt the "
            "EagleDraftInput did not carry it"
        )
    return draft_input.draft_probability[:rows]


class ChainConfidence:
    """Collects one chain after the other; of the draft worker that it is set on."""

    def __init__(self, max_rows: int, max_steps: int, device: Any):
        """``max_rows``: rows of the largest captured batch."""
        self._static = torch.zeros((max_rows, max_steps), device=device)
        self._chain = self._static

    seed = staticmethod(token_probability)
    carried = staticmethod(carried)

    def begin(self, rows: int, steps: int, replays: bool) -> None:
        """Before a chain of ``rows`` requests; ``replays``: a captured graph drafts it."""
        self._chain = self._static if replays else self._static.new_zeros((rows, steps))

    def record(
        self,
        column: int,
        output: Any,
        token_ids: torch.Tensor,
        rows: Optional[torch.Tensor] = None,
    ) -> None:
        """The token that was selected for position ``column``; see
        ``token_probability``. Captured with the draft; padding rows may follow."""
        probability = token_probability(output, token_ids, rows)
        chain = self._chain[: probability.shape[0], column : column + 1]
        chain.copy_(probability[: chain.shape[0]])

    def take(
        self, rows: int, steps: int, seed: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """The chain's probabilities, FP32 ``[rows, steps]``, detached from the buffer.

        ``seed``: FP32 ``[rows, 1]``, position 0 where it was not recorded.
        """
        chain = self._chain[:rows, :steps].clone()
        # Graphs are captured with the static buffer, maybe again later.
        self._chain = self._static
        if seed is not None:
            chain[:, :1] = seed
        return chain

    def attach(
        self, verify_input: Any, draft_input: Any, rows: int, steps: int
    ) -> None:
        """Hand a drafted chain's probabilities to its verification."""
        seed = carried(draft_input, rows)
        verify_input.draft_probability = self.take(rows, steps, seed)


def joined(
    first: Optional[torch.Tensor], second: Optional[torch.Tensor]
) -> Optional[torch.Tensor]:
    """Probabilities of two batches that are merged; ``None`` where one has none."""
    return None if first is None or second is None else torch.cat([first, second])


def stashed(
    buffer: Optional[torch.Tensor],
    probability: torch.Tensor,
    indices: torch.Tensor,
    slots: int,
) -> torch.Tensor:
    """The overlap relay's buffer FP32 ``[slots, n]`` after writing ``probability``
    ``[rows, n]`` to ``indices``; made when there is first something to write."""
    if buffer is None:
        buffer = probability.new_zeros((slots, probability.shape[1]))
    buffer[indices] = probability
    return buffer
