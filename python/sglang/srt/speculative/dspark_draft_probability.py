"""DSpark's confidence from the exact probability of every drafted token.

``DraftProbability`` stands where a draft model has its trained confidence head
(``--speculative-dspark-confidence-source draft-probability``): the verify planner, the
relay, the draft's CUDA graph and the data collection for a temperature fit treat it as
they treat the head. It has no weights; every draft step hands it what the token was
picked from.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, List, Optional, Tuple

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.environ import envs
from sglang.srt.speculative.draft_confidence import (
    calibrated,
    probability_logit,
    selected_probability,
)
from sglang.srt.speculative.dspark_components.dspark_draft import step_logits_width
from sglang.srt.speculative.dspark_confidence_source import FLAG


class DraftProbability:
    """Confidence of a block: of each token the probability that the draft gave it.

    A token that was picked as the largest logit has the softmax probability of that
    logit. A sampled one has its probability in the distribution that it was sampled
    from, softmax of ``logits / temperature``: verification accepts it by comparing
    that number with the target's.
    """

    proj = SimpleNamespace(weight=SimpleNamespace(dtype=torch.float32))
    """Of a head SGLang reads the dtype of the raw confidence here."""

    def __init__(self, greedy_draft: bool):
        self.greedy_draft = greedy_draft
        self.sts_temperatures: Optional[torch.Tensor] = None
        """FP32 ``[gamma]``, set by the planner from a calibration file."""
        self.columns: Tuple[Tuple[int, int], ...] = ()
        """Vocabulary columns ``[start, end)`` of every rank's shard."""
        self._steps: List[torch.Tensor] = []

    def connect(self, markov_head: Any, lm_head: Any) -> None:
        """Have the steps of ``markov_head`` over ``lm_head``'s vocabulary recorded."""
        self.columns = shard_columns(lm_head, int(markov_head.vocab_size))
        markov_head.draft_probability = self

    def step_logits(
        self, markov_head: Any, base_logits: torch.Tensor
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Where a greedy step shall leave its logits, and the temperatures that have
        it pick the largest.

        ``base_logits`` is ``[rows, columns]``; returns ``[rows, vocabulary]`` in the
        dtype of the step and zeros, FP32 ``[rows]``.
        """
        rows, columns = base_logits.shape
        logits = base_logits.new_empty(
            (rows, step_logits_width(markov_head, columns)),
            dtype=markov_head.step_logits_dtype(base_logits.dtype),
        )
        return logits, base_logits.new_zeros(rows, dtype=torch.float32)

    def add_logits(
        self,
        step: int,
        logits: torch.Tensor,
        token_ids: torch.Tensor,
        temperatures: torch.Tensor,
    ) -> None:
        """Record a dense step: ``token_ids`` int64 ``[rows]`` picked from ``logits``
        ``[rows, vocabulary]`` at ``temperatures`` FP32 ``[rows]``, 0 for the largest.
        """
        if not self.greedy_draft:
            sampled = torch.where(temperatures == 0, 1.0, temperatures)
            logits = logits.float() / sampled.unsqueeze(1)
        selected = logits.gather(1, token_ids.unsqueeze(1)).squeeze(1).float()
        logsumexp = logsumexp_by_shard(logits, self.columns)
        self.add(step, selected_probability(selected, logsumexp))

    def add(self, step: int, probability: torch.Tensor) -> None:
        """Record the probability of a step's tokens, FP32 ``[rows]``."""
        if step == 0:
            self._steps = []
        self._steps.append(probability)

    def predict(
        self, features: torch.Tensor, *, draft_tokens: torch.Tensor, **_: Any
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Confidence of the block that was just drafted and its logit before
        calibration, FP32 ``[bs, gamma]``, as a head gives them.

        ``draft_tokens`` is ``[bs, gamma]``; the rest is what a trained head reads.

        Raises:
            RuntimeError: the block was not drafted by steps that were recorded.
        """
        # What a graph's capture yields belongs to that graph.
        steps, self._steps = self._steps, []
        if [len(step) for step in steps] != [len(draft_tokens)] * draft_tokens.shape[1]:
            raise RuntimeError(
                f"{FLAG} draft-probability: {len(steps)} of {draft_tokens.shape[1]} "
                f"draft steps gave their logits. Use {FLAG} head."
            )
        probability = torch.stack(steps, dim=1)
        confidence = probability
        if self.sts_temperatures is not None:
            confidence = calibrated(probability, self.sts_temperatures)
        return confidence, probability_logit(probability)


def shard_columns(lm_head: Any, vocab_size: int) -> Tuple[Tuple[int, int], ...]:
    """Columns ``[start, end)`` of gathered logits that each rank's shard gave, without
    padding; ``vocab_size`` is the number of ids that a draft can propose."""
    ranks = int(getattr(lm_head, "tp_size", 1))
    end = min(vocab_size, int(lm_head.org_vocab_size))
    width = int(lm_head.num_embeddings_per_partition) if ranks > 1 else end
    return tuple(
        (min(rank * width, end), min((rank + 1) * width, end)) for rank in range(ranks)
    )


def logsumexp_by_shard(
    logits: torch.Tensor, columns: Tuple[Tuple[int, int], ...]
) -> torch.Tensor:
    """Log-sum-exp FP32 ``[rows]`` of whole logits ``[rows, vocabulary]``.

    Reduced shard by shard and merged in rank order, as the ranks do it on the packed
    path, so that both give the same bits.
    """
    words = [
        shard_winner(logits[:, start:end], valid_width=end - start, vocab_start=start)
        for start, end in columns
    ]
    return merge_shard_winners(torch.cat(words), rows=logits.shape[0])[2]


def build_draft_probability() -> DraftProbability:
    """What a draft model is given instead of a confidence head."""
    return DraftProbability(greedy_draft=envs.SGLANG_DSPARK_USE_GREEDY_DRAFT.get())


def connect_draft_probability(draft_model: Any) -> None:
    """Have a draft model's steps recorded, once it has its LM head.

    Nothing to do where no confidence is computed: with the static verify mode.
    """
    if isinstance(draft_model.confidence_head, DraftProbability):
        draft_model.confidence_head.connect(
            draft_model.markov_head, draft_model.lm_head
        )
