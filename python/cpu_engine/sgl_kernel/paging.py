"""Which slots of the KV pool a request's tokens live in, and reading them."""

from __future__ import annotations

import torch


def shares_storage(k_buffer: torch.Tensor, v_buffer: torch.Tensor) -> bool:
    """Whether values are the leading columns of the keys (latent attention)."""
    return k_buffer.data_ptr() == v_buffer.data_ptr()


def gather_heads(buffer: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """`buffer[slots]` head-major: `[batch, heads, n, D]` FP32.

    `buffer` `[slots, heads, D]`, `slots` int64 `[batch, n]`.
    """
    batch, n = slots.shape
    heads, dim = buffer.shape[1:]
    if buffer.stride(0) == heads * buffer.stride(1):
        # Index single heads, so that no transposed copy is needed for the products.
        head_rows = (slots * heads)[:, None, :] + torch.arange(heads)[:, None]
        picked = buffer.flatten(0, 1).index_select(0, head_rows.flatten())
        picked = picked.view(batch, heads, n, dim)
    else:
        picked = buffer[slots].transpose(1, 2)
    return picked.float()


def read_kv(
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    slots: torch.Tensor,
    k_scale: float,
    v_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values at `slots` `[batch, n]`, FP32 `[batch, kv heads, n, D]`."""
    keys = gather_heads(k_buffer, slots)
    if shares_storage(k_buffer, v_buffer):
        values = keys[..., : v_buffer.shape[-1]]
    else:
        values = gather_heads(v_buffer, slots)
    keys = keys if k_scale == 1.0 else keys * k_scale
    values = values if v_scale == 1.0 else values * v_scale
    return keys, values


def write_kv(
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    loc: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
) -> None:
    """Store one key and value per entry of `loc`; values of a latent pool are keys."""
    heads = k_buffer.shape[1]
    k_buffer[loc] = key.reshape(-1, heads, k_buffer.shape[-1]).to(k_buffer.dtype)
    if not shares_storage(k_buffer, v_buffer):
        v_buffer[loc] = value.reshape(-1, heads, v_buffer.shape[-1]).to(v_buffer.dtype)


def page_table(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    start: torch.Tensor,
    stop: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Slots, positions and validity, each `[batch, width]`, of `[start, stop)`.

    Places past a row's end repeat its first position, so that no stale slot is read.
    """
    width = int((stop - start).max())
    positions = start[:, None] + torch.arange(width)
    valid = positions < stop[:, None]
    positions = torch.where(valid, positions, start[:, None])
    return req_to_token[rows[:, None], positions].long(), positions, valid
