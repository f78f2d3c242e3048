"""Attention in scalar float64 loops, over a pool whose unowned slots hold NaN.

An answer with a NaN has read a slot that no request owns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass
class Pool:
    """KV of `lengths[i]` positions per request, at scattered slots of one pool."""

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor
    rows: torch.Tensor
    lengths: list[int]

    def at(self, buffer: torch.Tensor, request: int, position: int) -> torch.Tensor:
        return buffer[int(self.table[self.rows[request], position])]


def make_pool(
    lengths: list[int],
    kv_heads: int,
    dim: int,
    value_dim: int,
    dtype: torch.dtype = torch.float32,
) -> Pool:
    """Rows in reverse order with a gap, so that row i is never request i."""
    num_slots = sum(lengths) + 7
    free = torch.randperm(num_slots, dtype=torch.int32)
    table = torch.full((2 * len(lengths) + 1, max(lengths) + 3), int(free[-1]))
    table = table.to(torch.int32)
    rows = torch.arange(2 * len(lengths) - 1, 0, -2)
    keys = torch.full((num_slots, kv_heads, dim), math.nan, dtype=dtype)
    values = torch.full((num_slots, kv_heads, value_dim), math.nan, dtype=dtype)
    used = 0
    for row, length in zip(rows.tolist(), lengths):
        slots = free[used : used + length]
        used += length
        table[row, :length] = slots
        keys[slots.long()] = torch.randn(length, kv_heads, dim).to(dtype)
        values[slots.long()] = torch.randn(length, kv_heads, value_dim).to(dtype)
    return Pool(keys, values, table, rows, lengths)


def naive_head(
    query: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    scale: float,
    cap: float = 0.0,
    sink: float | None = None,
) -> list[float]:
    """One query of one head over the keys that it sees, in Python floats."""
    scores = []
    for key in keys:
        products = zip(query.tolist(), key.tolist(), strict=True)
        score = math.fsum(a * b for a, b in products) * scale
        scores.append(cap * math.tanh(score / cap) if cap else score)
    weights = [math.exp(score) for score in scores]
    total = math.fsum(weights) + (math.exp(sink) if sink is not None else 0.0)
    columns = zip(*(value.tolist() for value in values))
    return [
        math.fsum(w * x for w, x in zip(weights, column)) / total for column in columns
    ]


def naive(
    pool: Pool,
    query: torch.Tensor,
    request: int,
    seen: list[int],
    scale: float,
    cap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """All heads of one query `[heads, D]` over the positions `seen`, float64."""
    group = query.shape[0] // pool.keys.shape[1]
    out = []
    for head in range(query.shape[0]):
        keys = [pool.at(pool.keys, request, p)[head // group] for p in seen]
        values = [pool.at(pool.values, request, p)[head // group] for p in seen]
        sink = None if sinks is None else float(sinks[head])
        out.append(naive_head(query[head], keys, values, scale, cap, sink))
    return torch.tensor(out, dtype=torch.float64)


# Options of an attention call, by name of the case.
OPTIONS = {
    "plain": {},
    "window": {"window": 4},
    "logit cap": {"cap": 2.0},
    "sinks": {"sinks": True},
    "all three": {"sinks": True, "window": 3, "cap": 5.0},
}
