"""Gated delta rule: the recurrence of Qwen3.5's linear attention.

The state of a value head maps keys to values, `[V, K]`. Per token, with log decay g,
gate beta, key k and value v:
`state = exp(g) * state; state += beta * (v - state @ k) k^T; out = state @ q`
(Yang et al., Gated Delta Networks, 2024). Keys and queries are L2-normalised and the
queries scaled by `K ** -0.5`.
"""

from __future__ import annotations

from typing import Optional

import torch

from sgl_kernel.registry import cpu_op

L2_EPS = 1e-6


def unit(x: torch.Tensor) -> torch.Tensor:
    """L2-normalised over the last axis, FP32."""
    x = x.float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def log_decay(
    a_log: torch.Tensor,
    a: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> torch.Tensor:
    """`-exp(a_log) * softplus(a + dt_bias)`, FP32."""
    steps = torch.nn.functional.softplus(a.float() + dt_bias.float(), beta, threshold)
    return -a_log.float().exp() * steps


@cpu_op()
def fused_gdn_gating_cpu(
    A_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log decay and gate of every token and value head, FP32 `[1, tokens, heads]`."""
    return log_decay(A_log, a, dt_bias)[None], b.float().sigmoid()[None]


def step(
    state: torch.Tensor,
    v: torch.Tensor,
    k: torch.Tensor,
    q: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token: new state `[batch, heads, V, K]` and output `[batch, heads, V]`."""
    state = state * g.exp()[..., None, None]
    error = v - torch.matmul(state, k[..., None]).squeeze(-1)
    state = state + (beta[..., None] * error)[..., None] * k[..., None, :]
    return state, torch.matmul(state, q[..., None]).squeeze(-1)


def _heads(x: torch.Tensor, heads: int, scale: float = 1.0) -> torch.Tensor:
    """`[1, tokens, key heads, K]` normalised and repeated: `[tokens, heads, K]`."""
    x = unit(x[0]) * scale
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def run(
    v: torch.Tensor,
    k: torch.Tensor,
    q: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    states: torch.Tensor,
    cu_seqlens: torch.Tensor,
    snapshots: Optional[torch.Tensor] = None,
    parents: Optional[list[list[int]]] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence over ragged sequences: output `[1, tokens, heads, V]`, last states.

    `q`, `k` `[1, tokens, key heads, K]`, `v` `[1, tokens, heads, V]`, `g` and `beta`
    FP32 `[tokens, heads]`, `states` FP32 `[batch, heads, V, K]`. `snapshots`
    `[batch, steps, heads, V, K]` receives the state behind every token. `parents[i][t]`
    names the token whose state token t of sequence i continues (trees); else the one
    before it.
    """
    heads, key_dim = v.shape[2], q.shape[-1]
    queries, keys = _heads(q, heads, key_dim**-0.5), _heads(k, heads)
    values, out = v[0].float(), torch.empty(v.shape[1:], dtype=torch.float32)
    bounds = cu_seqlens.tolist()
    lengths = [stop - start for start, stop in zip(bounds, bounds[1:])]
    # Longest first, so that the sequences still running at a step lead the batch.
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    start = torch.tensor([bounds[i] for i in order])
    current = states[order]
    history: list[torch.Tensor] = []
    for t in range(max(lengths, default=0)):
        active = sum(length > t for length in lengths)
        tokens = start[:active] + t
        before = current[:active]
        if parents is not None and t > 0:
            came_from = [parents[i][t] for i in order[:active]]
            before = torch.stack([history[p][i] for i, p in enumerate(came_from)])
        after, out[tokens] = step(
            before,
            values[tokens],
            keys[tokens],
            queries[tokens],
            beta[tokens],
            g[tokens],
        )
        current = torch.cat((after, current[active:]))
        if parents is not None:
            history.append(after)
        if snapshots is not None:
            snapshots[order[:active], t] = after.to(snapshots.dtype)
    last = torch.empty_like(states)
    last[order] = current
    return out[None].to(q.dtype), last


def load_states(pool: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """FP32 states at `indices`; zeros for a negative index (a padding row)."""
    states = pool[indices.clamp(min=0)].float()
    return states.masked_fill_((indices < 0)[:, None, None, None], 0.0)


def store_states(
    pool: torch.Tensor, indices: torch.Tensor, states: torch.Tensor
) -> None:
    """Write the states back, except those with a negative index."""
    real = indices >= 0
    pool[indices[real]] = states[real].to(pool.dtype)


@cpu_op(mutates=("initial_state_source", "intermediate_states_buffer"))
def fused_sigmoid_gating_delta_rule_update_cpu(
    *,
    v: torch.Tensor,
    k: torch.Tensor,
    q: torch.Tensor,
    b: torch.Tensor,
    a: torch.Tensor,
    dt_bias: torch.Tensor,
    A_log: torch.Tensor,
    cu_seqlens: torch.Tensor,
    initial_state_indices: torch.Tensor,
    initial_state_source: torch.Tensor,
    use_qk_l2norm_in_kernel: bool,
    softplus_threshold: float = 20.0,
    softplus_beta: float = 1.0,
    disable_state_update: bool = False,
    is_kda: bool = False,
    intermediate_state_indices: Optional[torch.Tensor] = None,
    intermediate_states_buffer: Optional[torch.Tensor] = None,
    retrieve_parent_token: Optional[torch.Tensor] = None,
    cache_steps: Optional[int] = None,
) -> torch.Tensor:
    """Decode and verify: gates and recurrence, `[1, tokens, heads, V]`.

    `initial_state_source` `[slots, heads, V, K]` is read at `initial_state_indices` and
    updated there unless `disable_state_update`. `intermediate_states_buffer`
    `[rows, steps, heads, V, K]` receives the state behind every token at
    `intermediate_state_indices`.
    """
    if is_kda or not use_qk_l2norm_in_kernel:
        raise NotImplementedError(
            "the CPU engine's stand-in has the gated delta rule with one decay per head "
            "and normalised keys only"
        )
    heads = v.shape[2]
    g = log_decay(
        A_log, a.reshape(-1, heads), dt_bias, softplus_beta, softplus_threshold
    )
    beta = b.reshape(-1, heads).float().sigmoid()
    indices = initial_state_indices.long()[: cu_seqlens.numel() - 1]
    states = load_states(initial_state_source, indices)
    snapshots = rows = None
    if intermediate_states_buffer is not None:
        rows = intermediate_state_indices.long()[: indices.numel()]
        snapshots = intermediate_states_buffer[rows.clamp(min=0)]
    parents = None
    if retrieve_parent_token is not None:
        parents = retrieve_parent_token.tolist()
    out, last = run(v, k, q, beta, g, states, cu_seqlens, snapshots, parents)
    if snapshots is not None:
        intermediate_states_buffer[rows[rows >= 0]] = snapshots[rows >= 0]
    if not disable_state_update:
        store_states(initial_state_source, indices, last)
    return out
