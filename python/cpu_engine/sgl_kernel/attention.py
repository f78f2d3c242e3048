"""Decode and extend attention over the paged KV pool.

Shapes: queries `[tokens, query heads, D]`, KV buffers `[slots, kv heads, D or Dv]`,
`req_to_token` `[requests, positions]` of slots. Everything is computed in FP32,
whatever the tensors' dtype. A sliding window of w lets a query see the last w
positions, its own included; w <= 0 means no window.
"""

from __future__ import annotations

from typing import Optional

import torch

from sgl_kernel.extend import ExtendArgs, extend_group
from sgl_kernel.paging import page_table, read_kv, write_kv
from sgl_kernel.registry import cpu_op
from sgl_kernel.softmax import attend, blocks_of

# Keys gathered at once over the requests of a block; bounds a ragged batch's padding.
MAX_GATHERED_KEYS = 1 << 16


def _reject_cross_attention(cross: bool, encoder_lens: Optional[torch.Tensor]) -> None:
    if cross or encoder_lens is not None:
        raise NotImplementedError(
            "the CPU engine's stand-ins have no cross attention; serve a decoder-only "
            "model"
        )


@cpu_op(mutates=("k_cache", "v_cache", "output", "attn_logits"))
def decode_attention_cpu(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: float,
    v_scale: float,
    output: torch.Tensor,
    key: Optional[torch.Tensor],
    value: Optional[torch.Tensor],
    loc: Optional[torch.Tensor],
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Optional[torch.Tensor],
    sinks: Optional[torch.Tensor],
) -> None:
    """One query per request; writes the new key and value to the pool first.

    `seq_lens` int64 `[batch]` includes the new token. `attn_logits` is scratch of the
    compiled op and stays unused. A request of length 0 gets zeros.
    """
    _reject_cross_attention(is_cross_attn, encoder_lens)
    if key is not None:
        if loc is None:
            raise ValueError(
                "decode attention got new keys without slots to write them to; SGLang's "
                "multi-step draft does that on a sliding-window layer, which the CPU "
                "backend serves only through multi-layer EAGLE "
                "(--speculative-algorithm EAGLE, not NEXTN)"
            )
        write_kv(k_cache, v_cache, loc, key, value)
    batch = seq_lens.numel()
    if batch == 0:
        return
    start = torch.zeros_like(seq_lens)
    if sliding_window_size > 0:
        start = (seq_lens - sliding_window_size).clamp_(min=0)
    rows = req_pool_indices.long()
    longest = max(1, int((seq_lens - start).max()))
    for part in blocks_of(batch, max(1, MAX_GATHERED_KEYS // longest)):
        slots, _, valid = page_table(
            req_to_token, rows[part], start[part], seq_lens[part]
        )
        keys, values = read_kv(k_cache, v_cache, slots, k_scale, v_scale)
        queries, visible = query[part].unsqueeze(2), valid.unsqueeze(1)
        mixed = attend(queries, keys, values, visible, sm_scale, logit_cap, sinks)
        output[part] = mixed.squeeze(2).to(output.dtype)


@cpu_op(mutates=("o_extend",))
def extend_attention_cpu(
    q_extend: torch.Tensor,
    k_extend: Optional[torch.Tensor],
    v_extend: Optional[torch.Tensor],
    o_extend: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Optional[torch.Tensor],
    sinks: Optional[torch.Tensor],
    tree_mask: Optional[torch.Tensor],
    is_causal: bool,
) -> None:
    """Several queries per request, behind a prefix that may be empty.

    Request i's queries are rows `extend_start_loc[i]` on, `extend_seq_lens[i]` of them,
    and its last positions. Their keys come from `k_extend` when given (the pool may
    hold another form of them, as latent attention does), else from the pool; the prefix
    comes from the pool. `tree_mask` is flat bool, n x n cells a request, and replaces
    the causal mask among the new tokens; then every request extends by the same n.
    Rows of `o_extend` past the last query are zeroed.
    """
    _reject_cross_attention(is_cross_attn, encoder_lens)
    lengths = extend_seq_lens.tolist()
    args = ExtendArgs(
        query=q_extend,
        keys=k_extend,
        values=v_extend,
        output=o_extend,
        k_buffer=k_buffer,
        v_buffer=v_buffer,
        k_scale=k_scale,
        v_scale=v_scale,
        req_to_token=req_to_token,
        rows=req_pool_indices.long(),
        seq_lens=seq_lens,
        start_loc=extend_start_loc.long(),
        scale=sm_scale,
        logit_cap=logit_cap,
        window=sliding_window_size,
        sinks=sinks,
        tree_mask=_tree_blocks(tree_mask, lengths),
        is_causal=is_causal,
    )
    o_extend[sum(lengths) :].zero_()
    for length in sorted(set(lengths) - {0}):
        group = torch.tensor([i for i, n in enumerate(lengths) if n == length])
        longest = int(seq_lens[group].max())
        for part in blocks_of(group.numel(), max(1, MAX_GATHERED_KEYS // longest)):
            extend_group(args, group[part], length)


def _tree_blocks(
    tree_mask: Optional[torch.Tensor], lengths: list[int]
) -> Optional[torch.Tensor]:
    """The flat tree mask as `[batch, n, n]`; ValueError if it cannot be that."""
    if tree_mask is None or not lengths:
        return None
    batch, n = len(lengths), lengths[0]
    cells = batch * n * n
    if set(lengths) != {n} or tree_mask.numel() < cells:
        raise ValueError(
            f"tree_mask has {tree_mask.numel()} cells for extend lengths {lengths}; "
            f"expected one n x n block per request and equal lengths (QLEN_ONLY)"
        )
    return tree_mask[:cells].view(batch, n, n).bool()
