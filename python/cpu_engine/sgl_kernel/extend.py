"""Extend attention for requests that extend by the same number of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch

from sgl_kernel.paging import page_table, read_kv
from sgl_kernel.softmax import attend, blocks_of

# Score cells, over batch and heads, computed at once (FP32, 64 MiB).
MAX_SCORES = 1 << 24


@dataclass(frozen=True)
class ExtendArgs:
    """Arguments of `extend_attention_cpu` that concern the whole batch."""

    query: torch.Tensor
    keys: Optional[torch.Tensor]
    values: Optional[torch.Tensor]
    output: torch.Tensor
    k_buffer: torch.Tensor
    v_buffer: torch.Tensor
    k_scale: float
    v_scale: float
    req_to_token: torch.Tensor
    rows: torch.Tensor
    seq_lens: torch.Tensor
    start_loc: torch.Tensor
    scale: float
    logit_cap: float
    window: int
    sinks: Optional[torch.Tensor]
    tree_mask: Optional[torch.Tensor]
    is_causal: bool


def extend_group(args: ExtendArgs, group: torch.Tensor, length: int) -> None:
    """Attention of requests `group` `[batch]`, all extending by `length` tokens."""
    tokens = args.start_loc[group][:, None] + torch.arange(length)
    queries = args.query[tokens].transpose(1, 2)
    keys, values, prefix_positions = _keys_and_values(args, group, tokens)
    relation = _among_new(args, group, length)
    depth = _depth(args, group, length)
    prefix_lens = args.seq_lens[group] - length
    num_prefix = keys.shape[2] - length
    batch, heads = queries.shape[:2]
    step = max(1, MAX_SCORES // (batch * heads * keys.shape[2]))
    out = args.output.new_empty((batch, length, heads, args.output.shape[-1]))
    for part in blocks_of(length, step):
        visible = relation[:, part]
        if args.window > 0:
            gap = depth[:, part, None] - depth[:, None, :]
            visible = visible & (gap < args.window)
        if num_prefix:
            visible = visible.expand(batch, -1, -1)
            in_prefix = prefix_positions < prefix_lens[:, None]
            in_prefix = in_prefix[:, None].expand(-1, visible.shape[1], -1)
            if args.window > 0:
                query_positions = (prefix_lens[:, None] + depth[:, part])[..., None]
                first_seen = query_positions - args.window + 1
                in_prefix = in_prefix & (prefix_positions[:, None] >= first_seen)
            visible = torch.cat((in_prefix, visible), dim=2)
        mixed = attend(
            queries[:, :, part],
            keys,
            values,
            visible,
            args.scale,
            args.logit_cap,
            args.sinks,
        )
        out[:, part] = mixed.transpose(1, 2).to(out.dtype)
    args.output[tokens] = out


def _keys_and_values(
    args: ExtendArgs, group: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Prefix then new keys and values, and the prefix' positions.

    FP32 `[batch, kv heads, prefix + new, .]`; positions int64 `[batch, prefix]`, those
    of padding at or past the row's prefix length.
    """
    length = tokens.shape[1]
    seq_lens, rows = args.seq_lens[group], args.rows[group]
    prefix_lens = seq_lens - length
    start = torch.zeros_like(prefix_lens)
    if args.window > 0:
        start = (prefix_lens - args.window + 1).clamp_(min=0)
    slots, positions, valid = page_table(args.req_to_token, rows, start, prefix_lens)
    positions = positions.masked_fill(~valid, torch.iinfo(torch.int64).max)
    if args.keys is not None:
        head_dim, value_dim = args.query.shape[-1], args.output.shape[-1]
        new_keys = _by_head(args.keys, tokens, head_dim)
        new_values = _by_head(args.values, tokens, value_dim)
    else:
        new_slots, _, _ = page_table(args.req_to_token, rows, prefix_lens, seq_lens)
        new_keys, new_values = _read(args, new_slots)
    if slots.shape[1] == 0:
        return new_keys, new_values, positions
    keys, values = _read(args, slots)
    keys = torch.cat((keys, new_keys), dim=2)
    return keys, torch.cat((values, new_values), dim=2), positions


def _read(args: ExtendArgs, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return read_kv(args.k_buffer, args.v_buffer, slots, args.k_scale, args.v_scale)


def _by_head(rows: torch.Tensor, tokens: torch.Tensor, dim: int) -> torch.Tensor:
    """Rows `[tokens, heads * dim]` or `[tokens, heads, dim]`, head-major and FP32."""
    by_token = rows.reshape(rows.shape[0], -1, dim)
    return by_token[tokens].transpose(1, 2).float()


def _among_new(args: ExtendArgs, group: torch.Tensor, length: int) -> torch.Tensor:
    """Which new tokens each new token sees, bool `[batch or 1, length, length]`."""
    if args.tree_mask is not None:
        return args.tree_mask[group]
    everything = torch.ones((1, length, length), dtype=torch.bool)
    return everything.tril_() if args.is_causal else everything


def _depth(args: ExtendArgs, group: torch.Tensor, length: int) -> torch.Tensor:
    """Position behind the prefix, `[batch or 1, length]`: depth in a tree, else index."""
    if args.tree_mask is not None:
        return args.tree_mask[group].sum(-1) - 1
    return torch.arange(length)[None]
