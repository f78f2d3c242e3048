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

from sglang.srt.environ import envs
from sglang.srt.layers.dense_logsumexp import (
    VocabShards,
    dense_logsumexp,
    shards_of,
)
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
        self.shards, self.vocab_size = VocabShards(), 0
        """The split of the LM head, and the number of ids that can be drafted."""
        self._steps: List[torch.Tensor] = []

    def connect(self, markov_head: Any, lm_head: Any) -> None:
        """Have the steps of ``markov_head`` over ``lm_head``'s vocabulary recorded."""
        self.shards = shards_of(lm_head)
        self.vocab_size = min(int(markov_head.vocab_size), int(lm_head.org_vocab_size))
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
        # A rank's packed step has no padding columns.
        logsumexp = dense_logsumexp(
            logits[:, : self.vocab_size], self.shards, padded=False
        )
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
