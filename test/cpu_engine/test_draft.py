"""Draft page table, bonus tokens and shifted inputs against loops."""

from __future__ import annotations

import pytest
import sgl_kernel
import torch


@pytest.mark.parametrize("topk, num_steps", [(1, 3), (4, 3), (2, 5)])
def test_each_branch_sees_the_prefix_and_its_own_slots(topk, num_steps) -> None:
    """Red if a branch reads a sibling's slots."""
    table = torch.randperm(5 * 40, dtype=torch.int32).view(5, 40)
    rows, lengths = [4, 0, 2], [6, 1, 17]
    got = sgl_kernel.build_draft_decode_metadata_cpu(
        table, torch.tensor(rows), torch.tensor(lengths), topk, num_steps, 40
    )
    assert got.dtype == torch.int32 and got.shape[0] == len(rows) * topk
    for i, (row, length) in enumerate(zip(rows, lengths)):
        slots = table[row].tolist()
        for branch in range(topk):
            first = length + branch * num_steps
            want = slots[:length] + slots[first : first + num_steps]
            assert got[i * topk + branch, : length + num_steps].tolist() == want


def test_branches_at_the_end_of_the_table() -> None:
    """Red if a short request's unused columns index past the table."""
    table = torch.arange(2 * 12, dtype=torch.int32).view(2, 12)
    got = sgl_kernel.build_draft_decode_metadata_cpu(
        table, torch.tensor([0, 1]), torch.tensor([1, 8]), 2, 2, 12
    )
    assert got[3].tolist() == [*range(12, 20), 22, 23]


def test_no_request_gives_an_empty_table() -> None:
    """Red if an empty batch needs a maximum."""
    none = torch.empty(0, dtype=torch.int64)
    table = torch.zeros((2, 9), dtype=torch.int32)
    got = sgl_kernel.build_draft_decode_metadata_cpu(table, none, none, 1, 3, 9)
    assert got.shape[0] == 0


def test_bonus_token_is_the_last_accepted() -> None:
    """Red if the stride or the length is off by one."""
    tokens = torch.tensor([[11, 12, 13], [21, 22, 23], [31, 32, 33]])
    lengths = torch.tensor([1, 3, 2], dtype=torch.int32)
    bonus = torch.zeros(3, dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(tokens.flatten(), lengths, bonus, 3)
    assert bonus.tolist() == [11, 23, 32]


@pytest.mark.parametrize("select", [None, [1, 4, 3]])
def test_tokens_rotate_within_their_request(select) -> None:
    """Red if a request takes its neighbour's token, or an empty one is written."""
    ids = torch.tensor([1, 2, 3, 4, 5, 6])
    want = [2, 3, 70, 5, 80, 6] if select is None else [2, 70, 3, 5, 80, 6]
    sgl_kernel.rotate_input_ids_cpu(
        ids,
        torch.tensor([0, 3, 5], dtype=torch.int32),
        torch.tensor([3, 2, 0], dtype=torch.int32),
        torch.tensor([[70], [80], [90]]),
        None if select is None else torch.tensor(select),
    )
    assert ids.tolist() == want
