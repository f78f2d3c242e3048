"""Small fused ops that Qwen3.5's CPU code calls."""

from __future__ import annotations

import torch

from sgl_kernel.registry import cpu_op


def _rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _gemma_rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm whose weight is stored as the difference from 1."""
    return (_rms(x, eps) * (1.0 + weight.float())).to(x.dtype)


@cpu_op(mutates=("x",))
def fused_sigmoid_mul_cpu(x: torch.Tensor, gate: torch.Tensor) -> None:
    """`x *= sigmoid(gate)`; a gate of `[rows, heads, D]` fits `x` of `[rows, heads * D]`."""
    gate = gate.reshape(x.shape) if gate.numel() == x.numel() else gate
    x.copy_(x.float() * gate.float().sigmoid())


@cpu_op()
def fused_qk_gemma_rmsnorm_cpu(
    queries: torch.Tensor,
    keys: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    eps: float,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise every head of `[tokens, heads * D]`, twice: `[tokens * heads, D]`."""
    q_heads, k_heads = queries.reshape(-1, head_dim), keys.reshape(-1, head_dim)
    normed_keys = _gemma_rms(k_heads, key_weight, eps)
    return _gemma_rms(q_heads, query_weight, eps), normed_keys


@cpu_op()
def fused_qk_gemma_rmsnorm_with_gate_cpu(
    queries_and_gates: torch.Tensor,
    keys: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    eps: float,
    head_dim: int,
    num_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As above with `[tokens, heads * 2 * D]`: each head's query, then its gate."""
    pairs = queries_and_gates.reshape(-1, 2, head_dim)
    normed_queries = _gemma_rms(pairs[:, 0], query_weight, eps)
    normed_keys = _gemma_rms(keys.reshape(-1, head_dim), key_weight, eps)
    return normed_queries, normed_keys, pairs[:, 1].contiguous()


@cpu_op()
def fused_qkvzba_split_reshape_cat_contiguous_cpu(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split `[q | k | v | z]` and `[b | a]`: qkv, z `[tokens, heads, V]`, b, a."""
    value = num_heads_v * head_v
    qkv, z = mixed_qkvz.split([2 * num_heads_qk * head_qk + value, value], dim=-1)
    b, a = mixed_ba.split(num_heads_v, dim=-1)
    z = z.reshape(-1, num_heads_v, head_v)
    return qkv.clone(), z.clone(), b.clone(), a.clone()


@cpu_op()
def fused_rmsnorm_gated_cpu(
    x: torch.Tensor, weight: torch.Tensor, z: torch.Tensor, eps: float
) -> torch.Tensor:
    """`rms_norm(x) * weight * silu(z)` over the last axis, in `x`'s dtype."""
    gate = torch.nn.functional.silu(z.float())
    return (_rms(x, eps) * weight.float() * gate).to(x.dtype)
