"""State-space ops of `sgl_kernel.mamba`: causal convolutions, chunked delta rule.

Convolution states are `[slots, dim, width - 1]`: the last inputs of each channel.
"""

from __future__ import annotations

import torch

from sgl_kernel.delta_rule import load_states, run, store_states

__all__ = [
    "causal_conv1d_fn_cpu",
    "causal_conv1d_update_cpu",
    "chunk_gated_delta_rule_cpu",
]


def _activate(x: torch.Tensor, activation: str | bool | None) -> torch.Tensor:
    if activation in (None, False):
        return x
    if activation in (True, "silu", "swish"):
        return torch.nn.functional.silu(x)
    raise NotImplementedError(f"causal convolution has no activation {activation!r}")


def _check_window(conv_states: torch.Tensor, weight: torch.Tensor) -> None:
    if conv_states.shape[-1] != weight.shape[-1] - 1:
        raise ValueError(
            f"convolution states hold {conv_states.shape[-1]} inputs; a kernel of "
            f"width {weight.shape[-1]} needs {weight.shape[-1] - 1}"
        )


def causal_conv1d_fn_cpu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    conv_states: torch.Tensor,
    has_initial_state: torch.Tensor,
    cache_indices: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens_cpu: list[int] | torch.Tensor,
) -> torch.Tensor:
    """Depthwise causal convolution of ragged prompts `[dim, tokens]`; same shape out.

    A sequence continues its state where `has_initial_state`, else it starts from zeros;
    its last inputs become the new state. A negative cache index marks a padding row.
    """
    _check_window(conv_states, weight)
    width = weight.shape[-1]
    out = torch.zeros_like(x)
    bounds = query_start_loc.tolist()
    slots, continues = cache_indices.tolist(), has_initial_state.tolist()
    kernel = weight.float().unsqueeze(1)
    offset = None if bias is None else bias.float()
    for start, stop, slot, follow in zip(bounds, bounds[1:], slots, continues):
        if slot < 0 or stop == start:
            continue
        past = conv_states[slot] if follow else torch.zeros_like(conv_states[slot])
        inputs = torch.cat((past.float(), x[:, start:stop].float()), dim=1)
        mixed = torch.nn.functional.conv1d(
            inputs[None], kernel, offset, groups=x.shape[0]
        )
        out[:, start:stop] = _activate(mixed[0], activation).to(out.dtype)
        conv_states[slot] = inputs[:, -(width - 1) :].to(conv_states.dtype)
    return out


def _parents_from_links(
    next_token: torch.Tensor, next_sibling: torch.Tensor
) -> torch.Tensor:
    """Parent of every tree node, int64 `[batch, n]`; 0 for the root itself."""
    parents = []
    for children, siblings in zip(next_token.tolist(), next_sibling.tolist()):
        row = [0] * len(children)
        for node, child in enumerate(children):
            while child != -1:
                row[child] = node
                child = siblings[child]
        parents.append(row)
    return torch.tensor(parents, dtype=torch.int64)


def causal_conv1d_update_cpu(
    x: torch.Tensor,
    conv_states: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    conv_state_indices: torch.Tensor | None = None,
    intermediate_conv_window: torch.Tensor | None = None,
    intermediate_state_indices: torch.Tensor | None = None,
    retrieve_next_token: torch.Tensor | None = None,
    retrieve_next_sibling: torch.Tensor | None = None,
    retrieve_parent_token: torch.Tensor | None = None,
) -> torch.Tensor:
    """Convolution of new tokens `[batch, dim]` or `[batch, dim, n]`; same shape out.

    Decode: the state moves on by the new tokens. Verify (`intermediate_conv_window`
    `[rows, steps, dim, width - 1]` given): the window behind every token is kept there
    and the state is left alone, since the accepted window replaces it. With
    `retrieve_next_token` the tokens form a tree, each continues its parent's window,
    and `retrieve_parent_token` receives the parents.
    """
    _check_window(conv_states, weight)
    tokens = x if x.dim() == 3 else x.unsqueeze(-1)
    batch, _, n = tokens.shape
    slots = conv_state_indices[:batch].long()
    parents = None
    if retrieve_next_token is not None:
        parents = _parents_from_links(retrieve_next_token, retrieve_next_sibling)
        retrieve_parent_token[:batch, :n] = parents.to(retrieve_parent_token.dtype)
    windows = [conv_states[slots.clamp(min=0)].float()]
    kernel, every = weight.float(), torch.arange(batch)
    out = torch.empty_like(tokens)
    stacked = torch.stack(windows)
    for t in range(n):
        if parents is None or t == 0:
            before = windows[-1]
        else:
            before = stacked[parents[:batch, t] + 1, every]
        inputs = torch.cat((before, tokens[:, :, t, None].float()), dim=2)
        mixed = (inputs * kernel).sum(-1)
        mixed = mixed if bias is None else mixed + bias.float()
        out[:, :, t] = _activate(mixed, activation).to(out.dtype)
        windows.append(inputs[:, :, 1:])
        if parents is not None:
            stacked = torch.stack(windows)
    if intermediate_conv_window is None:
        real = slots >= 0
        conv_states[slots[real]] = windows[-1][real].to(conv_states.dtype)
    else:
        rows = intermediate_state_indices[:batch].long()
        kept = torch.stack(windows[1:], dim=1).to(intermediate_conv_window.dtype)
        intermediate_conv_window[rows[rows >= 0], :n] = kept[rows >= 0]
    return out if x.dim() == 3 else out.squeeze(-1)


def chunk_gated_delta_rule_cpu(
    *,
    v: torch.Tensor,
    k: torch.Tensor,
    q: torch.Tensor,
    beta: torch.Tensor,
    g: torch.Tensor,
    cu_seqlens: torch.Tensor,
    initial_state_indices: torch.Tensor,
    initial_state: torch.Tensor,
    use_qk_l2norm_in_kernel: bool,
    head_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, None]:
    """Prefill of the gated delta rule, token by token: output, last states, no chunks.

    `initial_state` `[slots, heads, V, K]` is read and updated at
    `initial_state_indices`; `g` is the log decay, `beta` the gate, `[1, tokens, heads]`.
    """
    if head_first or not use_qk_l2norm_in_kernel:
        raise NotImplementedError(
            "the CPU engine's stand-in takes tokens before heads and normalises keys"
        )
    indices = initial_state_indices.long()[: cu_seqlens.numel() - 1]
    states = load_states(initial_state, indices)
    out, last = run(v, k, q, beta[0].float(), g[0].float(), states, cu_seqlens)
    store_states(initial_state, indices, last)
    return out, last, None
