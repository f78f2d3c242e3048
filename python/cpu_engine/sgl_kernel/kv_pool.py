"""Slot bookkeeping: the request-to-token table and moves inside the KV pool.

Names used below: `req_to_token` int32 `[max requests, max tokens]` holds, for each
request and position, a slot of the KV pool; `req_pool_indices` `[batch]` picks its
rows. Start and end offsets are positions, end exclusive.
"""

from __future__ import annotations

import ctypes

import torch


def ragged_coordinates(
    rows: torch.Tensor, start: torch.Tensor, end: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column, int64, of every cell `[rows[i], start[i]:end[i]]`, in order."""
    start = start.to(torch.int64)
    lengths = end.to(torch.int64) - start
    offsets = lengths.cumsum(0) - lengths
    total = int(lengths.sum())
    columns = torch.arange(total, dtype=torch.int64)
    columns += torch.repeat_interleave(start - offsets, lengths, output_size=total)
    expanded = torch.repeat_interleave(rows.to(torch.int64), lengths, output_size=total)
    return expanded, columns


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write `out_cache_loc`, packed by request, into the table's `[start, end)`."""
    rows, columns = ragged_coordinates(req_pool_indices, start_offset, end_offset)
    slots = out_cache_loc[: rows.numel()].to(req_to_token.dtype)
    req_to_token[rows, columns] = slots


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read the table's `[start, end)` of each request, packed, into `out_cache_loc`.

    Entries of `out_cache_loc` past the total length keep their value.
    """
    rows, columns = ragged_coordinates(req_pool_indices, start_offset, end_offset)
    out_cache_loc[: rows.numel()] = req_to_token[rows, columns].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the `topk * num_steps` slots behind each sequence into `out_cache_loc`."""
    width = topk * num_steps
    columns = seq_lens.to(torch.int64)[:, None] + torch.arange(width)
    slots = req_to_token[req_pool_indices.to(torch.int64)[:, None], columns]
    out_cache_loc[: slots.numel()] = slots.flatten().to(out_cache_loc.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accept_out_cache_loc: torch.Tensor,
) -> None:
    """Pack `out_cache_loc[i]` for every accepted `i` (those that are not -1)."""
    accepted = accept_index[accept_index != -1].to(torch.int64)
    slots = out_cache_loc[accepted]
    accept_out_cache_loc[: slots.numel()] = slots.to(accept_out_cache_loc.dtype)


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor,
    strides: torch.Tensor,
    tgt_loc: torch.Tensor,
    src_loc: torch.Tensor,
) -> None:
    """Copy slots `src_loc` to `tgt_loc` in every buffer; the two may overlap.

    `data_ptrs` holds the buffers' addresses, `strides` the bytes of one slot of each.
    All sources are read before any target is written.
    """
    if tgt_loc.numel() == 0:
        return
    source, target = src_loc.to(torch.int64), tgt_loc.to(torch.int64)
    num_slots = 1 + max(int(source.max()), int(target.max()))
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (num_slots * stride)).from_address(address)
        slots = torch.frombuffer(memory, dtype=torch.uint8).view(num_slots, stride)
        slots[target] = slots[source]
