"""Exact probability of a greedily drafted token."""

import torch


def selected_probability(logits: torch.Tensor, logsumexp: torch.Tensor) -> torch.Tensor:
    """Softmax probability of the selected token, ``exp(logit - logsumexp)``.

    Args:
        logits: selected logits, FP32, any shape.
        logsumexp: log-sum-exp over the whole vocabulary, FP32, of a shape that
            broadcasts to that of the logits.

    Returns:
        FP32 probability in [0, 1], of the logits' shape; 0 where the log-sum-exp is NaN or
        infinite.
    """
    probability = torch.exp(logits - logsumexp).clamp_(max=1.0)
    return torch.where(logsumexp.isfinite(), probability, 0.0)
