"""Small fused ops, and the state scatter after a verify, against loops."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import sgl_kernel  # noqa: F401  (registers the ops)
import torch
from cpu_linear_attention import scatter_verified_states

ops = torch.ops.sgl_kernel


def rms(row: list[float], weight: list[float], eps: float) -> list[float]:
    scale = 1 / math.sqrt(math.fsum(x * x for x in row) / len(row) + eps)
    return [x * scale * w for x, w in zip(row, weight)]


def close(got: torch.Tensor, want: list) -> None:
    want = torch.tensor(want, dtype=torch.float64)
    torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("gate_shape", [(3, 8), (3, 2, 4), (3, 1)])
def test_sigmoid_gate_in_place(gate_shape: tuple[int, ...]) -> None:
    """Red if a gate by heads or one per row is applied to the wrong columns."""
    x, gate = torch.randn(3, 8), torch.randn(gate_shape)
    flat = gate.reshape(3, -1)
    want = [
        [
            float(x[i, j]) / (1 + math.exp(-float(flat[i, j % flat.shape[1]])))
            for j in range(8)
        ]
        for i in range(3)
    ]
    ops.fused_sigmoid_mul_cpu(x, gate)
    close(x, want)


@pytest.mark.parametrize("with_gate", [False, True])
def test_gemma_norm_of_every_head(with_gate: bool) -> None:
    """Red if the weight's 1 is missing, or gates are taken for queries."""
    dim, q_heads, k_heads, eps = 4, 3, 2, 1e-5
    width = q_heads * dim * (2 if with_gate else 1)
    fused = torch.randn(5, width + 2 * k_heads * dim)
    # Views with a row stride, as the projection's split gives them.
    q, k, _ = fused.split([width, k_heads * dim, k_heads * dim], dim=-1)
    q_weight, k_weight = torch.randn(dim), torch.randn(dim)
    ones = [(1 + w).tolist() for w in (q_weight, k_weight)]
    if with_gate:
        got = ops.fused_qk_gemma_rmsnorm_with_gate_cpu(
            q, k, q_weight, k_weight, eps, dim, q_heads
        )
        heads = q.reshape(5 * q_heads, 2 * dim)
        close(got[2], heads[:, dim:].tolist())
        q_rows = heads[:, :dim].tolist()
    else:
        got = ops.fused_qk_gemma_rmsnorm_cpu(q, k, q_weight, k_weight, eps, dim)
        q_rows = q.reshape(-1, dim).tolist()
    close(got[0], [rms(row, ones[0], eps) for row in q_rows])
    k_rows = k.reshape(-1, dim).tolist()
    close(got[1], [rms(row, ones[1], eps) for row in k_rows])


def test_split_of_the_linear_attention_projection() -> None:
    """Red if z starts inside v, or a and b change places."""
    q_heads, v_heads, key, value, tokens = 2, 4, 3, 5, 6
    sizes = [q_heads * key, q_heads * key, v_heads * value, v_heads * value]
    qkvz, ba = torch.randn(tokens, sum(sizes)), torch.randn(tokens, 2 * v_heads)
    qkv, z, b, a = ops.fused_qkvzba_split_reshape_cat_contiguous_cpu(
        qkvz, ba, q_heads, v_heads, key, value
    )
    assert torch.equal(torch.cat((qkv, z.flatten(1)), 1), qkvz)
    assert z.shape == (tokens, v_heads, value)
    assert qkv.shape[1] == sum(sizes[:3])
    assert torch.equal(torch.cat((b, a), 1), ba)


def test_gated_norm() -> None:
    """Red if the gate is applied before the norm."""
    x, z, weight = torch.randn(4, 6), torch.randn(4, 6), torch.randn(6)
    got = ops.fused_rmsnorm_gated_cpu(x, weight, z, 1e-6)
    want = [
        [
            y * float(g) / (1 + math.exp(-float(g)))
            for y, g in zip(rms(row.tolist(), weight.tolist(), 1e-6), gates)
        ]
        for row, gates in zip(x, z)
    ]
    close(got, want)


@pytest.mark.parametrize("rows", [None, [2, 0, 1]])
@pytest.mark.parametrize("track", [False, True])
def test_accepted_states_reach_their_slots(rows, track: bool) -> None:
    """Red if a request takes another's state, or a step of -1 is copied."""
    layers, slots, requests, steps = 2, 9, 4, 3
    shapes = {"temporal": (2, 3, 2), "conv": (4, 3)}
    pools = {n: torch.randn(layers, slots, *s) for n, s in shapes.items()}
    kept = {n: torch.randn(layers, requests, steps, *s) for n, s in shapes.items()}
    caches = SimpleNamespace(
        temporal=pools["temporal"],
        intermediate_ssm=kept["temporal"],
        conv=[pools["conv"]],
        intermediate_conv_window=[kept["conv"]],
    )
    where, accepted = [5, 2, 7], [2, -1, 0]
    track_where, track_steps = [8, 1, 3], [-1, 1, -1]
    want = {name: pool.clone() for name, pool in pools.items()}
    for name in want:
        for layer in range(layers):
            for i in range(3):
                source = kept[name][layer, i if rows is None else rows[i]]
                if accepted[i] >= 0:
                    want[name][layer, where[i]] = source[accepted[i]]
                if track and track_steps[i] >= 0:
                    want[name][layer, track_where[i]] = source[track_steps[i]]
    scatter_verified_states(
        caches,
        torch.tensor(where, dtype=torch.int32),
        torch.tensor(accepted, dtype=torch.int32),
        torch.tensor(track_where) if track else None,
        torch.tensor(track_steps) if track else None,
        src_indices_raw=None if rows is None else torch.tensor(rows),
    )
    assert torch.equal(pools["temporal"], want["temporal"])
    assert torch.equal(pools["conv"], want["conv"])
