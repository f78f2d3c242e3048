"""Grouped-query softmax attention in FP32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import torch


def blocks_of(total: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover `range(total)`."""
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    visible: Optional[torch.Tensor],
    scale: float,
    logit_cap: float = 0.0,
    sinks: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Softmax attention, FP32 `[batch, query heads, n, Dv]`.

    `query` `[batch, query heads, n, D]`, `keys` and `values` `[batch, kv heads, m, .]`
    FP32, `visible` bool `[batch, n, m]` or None for all. `logit_cap` > 0 bounds scores
    by `cap * tanh(score / cap)`. `sinks` `[query heads]` are scores of one extra,
    valueless key per head. A query that sees no key gets zeros.
    """
    batch, heads, n, dim = query.shape
    kv_heads, m = keys.shape[1:3]
    group = heads // kv_heads
    grouped = query.reshape(batch * kv_heads, group * n, dim).float() * scale
    scores = torch.bmm(grouped, keys.reshape(batch * kv_heads, m, dim).mT)
    scores = scores.view(batch, kv_heads, group, n, m)
    if logit_cap > 0:
        scores = torch.tanh(scores / logit_cap) * logit_cap
    if visible is not None:
        scores = scores.masked_fill_(~visible[:, None, None], float("-inf"))
    weights = _softmax(scores, sinks, kv_heads)
    weights = weights.view(batch * kv_heads, group * n, m)
    mixed = torch.bmm(weights, values.reshape(batch * kv_heads, m, -1))
    return mixed.view(batch, heads, n, -1)


def _softmax(
    scores: torch.Tensor, sinks: Optional[torch.Tensor], kv_heads: int
) -> torch.Tensor:
    """Softmax over the last axis of `[batch, kv heads, group, n, m]`, with sinks."""
    top = scores.amax(-1, keepdim=True)
    sink = None
    if sinks is not None:
        sink = sinks.float().view(1, kv_heads, -1, 1, 1)
        top = torch.maximum(top, sink)
    # A row of -inf has no key; a finite maximum makes its weights 0, not NaN.
    top = top.clamp_(min=torch.finfo(torch.float32).min)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + torch.exp(sink - top)
    return weights / total.clamp_(min=torch.finfo(torch.float32).tiny)
