"""Small ops around the draft model: its page table, bonus tokens, shifted inputs."""

from __future__ import annotations

import torch


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """One page-table row per draft branch, int32 `[batch * topk, width]`.

    A branch sees the request's prefix and then its own `num_steps` of the
    `topk * num_steps` slots that follow the prefix. The table is only as wide as the
    longest prefix plus `num_steps`, not `pool_len`.
    """
    lengths = seq_lens.to(torch.int64)
    batch = lengths.numel()
    if batch == 0:
        return req_to_token.new_empty((0, num_steps))
    rows = req_pool_indices.to(torch.int64)
    width = int(lengths.max()) + num_steps
    if topk == 1:
        return req_to_token[:, :width].index_select(0, rows)
    columns = torch.arange(width)
    # Shift of branch j past the prefix: the slots of the branches before it.
    shift = torch.arange(topk)[:, None] * num_steps
    in_prefix = columns < lengths[:, None, None]
    columns = torch.where(in_prefix, columns, columns + shift)
    return req_to_token[rows[:, None, None], columns].view(batch * topk, width)


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """Last accepted token of each request; `accept_lens` includes the bonus token."""
    starts = torch.arange(accept_lens.numel()) * accept_stride
    last = starts + accept_lens.to(torch.int64) - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None,
) -> None:
    """Shift each request's tokens left by one and put its new token in, in place.

    The new token goes to `select_index[i]` of `input_ids`, or to the request's last
    place. A request of length 0 is left alone.
    """
    starts, lengths = extend_start_loc.tolist(), extend_seq_lens.tolist()
    new_tokens = topk_index.flatten().to(input_ids.dtype)
    for i, (start, length) in enumerate(zip(starts, lengths)):
        if length == 0:
            continue
        stop = start + length
        input_ids[start : stop - 1] = input_ids[start + 1 : stop].clone()
        place = stop - 1 if select_index is None else int(select_index[i])
        input_ids[place] = new_tokens[i]
