"""Slot bookkeeping against loops over Python lists."""

from __future__ import annotations

import pytest
import sgl_kernel
import torch

REQUESTS, WIDTH = 6, 20


def make_table() -> torch.Tensor:
    """Distinct slots everywhere, so that a wrong cell shows."""
    return torch.randperm(REQUESTS * WIDTH, dtype=torch.int32).view(REQUESTS, WIDTH)


RANGES = [
    pytest.param([4, 0, 2], [3, 0, 10], [7, 4, 14], id="four each"),
    pytest.param([5, 1, 3, 2], [0, 6, 2, 9], [9, 6, 3, 11], id="ragged, one empty"),
    pytest.param([], [], [], id="no request"),
]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("rows, start, end", RANGES)
def test_read_of_new_slots(rows, start, end, dtype) -> None:
    """Red if requests are packed out of order or the tail is written."""
    table = make_table()
    want = [int(table[r, p]) for r, s, e in zip(rows, start, end) for p in range(s, e)]
    out = torch.full((len(want) + 3,), -7, dtype=torch.int64)
    sgl_kernel.assign_extend_cache_locs_cpu(
        torch.tensor(rows, dtype=torch.int64),
        table,
        torch.tensor(start, dtype=dtype),
        torch.tensor(end, dtype=dtype),
        out,
        WIDTH,
    )
    assert out.tolist() == want + [-7] * 3


@pytest.mark.parametrize("rows, start, end", RANGES)
def test_write_of_new_slots(rows, start, end) -> None:
    """Red if a cell outside `[start, end)` changes."""
    table = make_table()
    want = table.tolist()
    slots = iter(range(1000, 2000))
    for row, first, last in zip(rows, start, end):
        for position in range(first, last):
            want[row][position] = next(slots)
    sgl_kernel.assign_req_to_token_pool_cpu(
        torch.tensor(rows, dtype=torch.int64),
        table,
        torch.tensor(start, dtype=torch.int64),
        torch.tensor(end, dtype=torch.int64),
        torch.arange(1000, 1100),
        WIDTH,
    )
    assert table.tolist() == want


@pytest.mark.parametrize("topk, num_steps", [(1, 3), (4, 2), (2, 1)])
def test_draft_slots_follow_the_sequence(topk: int, num_steps: int) -> None:
    """Red if branches share slots or start at the wrong position."""
    table, rows, lengths = make_table(), [3, 0, 5], [4, 0, 11]
    width = topk * num_steps
    want = [int(table[r, n + k]) for r, n in zip(rows, lengths) for k in range(width)]
    out = torch.zeros(len(want), dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor(rows),
        table,
        torch.tensor(lengths),
        out,
        WIDTH,
        topk,
        num_steps,
    )
    assert out.tolist() == want


def test_accepted_slots_are_packed() -> None:
    """Red if -1 entries leave holes or index from the end."""
    accept = torch.tensor([[0, 2, -1], [3, -1, -1], [6, 7, 8]], dtype=torch.int32)
    slots = torch.arange(100, 109)
    out = torch.zeros(9, dtype=torch.int64)
    sgl_kernel.fill_accept_out_cache_loc_cpu(accept, slots, out)
    assert out.tolist() == [100, 102, 103, 106, 107, 108, 0, 0, 0]


def test_copy_moves_every_layer_and_reads_before_it_writes() -> None:
    """Red if slot widths are mixed up, or an overlapping move cascades."""
    layers = [torch.randn(12, 2, 8), torch.randn(12, 3).bfloat16()]
    source, target = [5, 2, 3, 9], [2, 3, 4, 0]
    want = [layer.clone() for layer in layers]
    for layer, before in zip(want, layers):
        for s, t in zip(source, target):
            layer[t] = before[s]
    sgl_kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64),
        torch.tensor([layer[0].nbytes for layer in layers]),
        torch.tensor(target),
        torch.tensor(source),
    )
    for got, expected in zip(layers, want):
        assert torch.equal(got, expected)


def test_copy_of_nothing() -> None:
    """Red if an empty move needs a maximum."""
    layer, none = torch.randn(3, 2), torch.empty(0, dtype=torch.int64)
    before = layer.clone()
    address = torch.tensor([layer.data_ptr()], dtype=torch.uint64)
    sgl_kernel.copy_all_layer_kv_cache_cpu(address, torch.tensor([8]), none, none)
    assert torch.equal(layer, before)
