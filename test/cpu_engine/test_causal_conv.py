"""Causal convolutions against a loop over tokens and channels."""

from __future__ import annotations

import math

import pytest
import torch
from sgl_kernel.mamba import causal_conv1d_fn_cpu, causal_conv1d_update_cpu

DIM, SLOTS = 5, 8


def naive(
    inputs: list[float], kernel: list[float], bias: float, silu: bool
) -> list[float]:
    """Outputs of one channel for the inputs past the first `width - 1`."""
    width, out = len(kernel), []
    for end in range(width, len(inputs) + 1):
        products = (x * w for x, w in zip(inputs[end - width : end], kernel))
        total = math.fsum(products) + bias
        out.append(total / (1 + math.exp(-total)) if silu else total)
    return out


def expected(
    past: torch.Tensor, new: torch.Tensor, weight: torch.Tensor, bias, silu: bool
) -> torch.Tensor:
    """`past` `[DIM, width - 1]` and `new` `[DIM, n]` of one sequence: `[DIM, n]`."""
    rows = []
    for c in range(DIM):
        inputs = past[c].tolist() + new[c].tolist()
        offset = 0.0 if bias is None else float(bias[c])
        rows.append(naive(inputs, weight[c].tolist(), offset, silu))
    return torch.tensor(rows, dtype=torch.float64)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), want.double(), atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_prefill(width: int, with_bias: bool, activation: str | None) -> None:
    """Red if a sequence sees its neighbour's inputs or a stale state."""
    lengths, slots, follows = [6, 1, 4], [3, 0, 5], [False, True, True]
    x, weight = torch.randn(sum(lengths), DIM).T, torch.randn(DIM, width)
    bias = torch.randn(DIM) if with_bias else None
    states = torch.randn(SLOTS, DIM, width - 1)
    before, bounds = states.clone(), torch.tensor([0, *lengths]).cumsum(0)
    got = causal_conv1d_fn_cpu(
        x,
        weight,
        bias,
        activation=activation,
        conv_states=states,
        has_initial_state=torch.tensor(follows),
        cache_indices=torch.tensor(slots, dtype=torch.int32),
        query_start_loc=bounds.int(),
        seq_lens_cpu=lengths,
    )
    for start, n, slot, follow in zip(bounds.tolist(), lengths, slots, follows):
        new = x[:, start : start + n]
        past = before[slot] if follow else torch.zeros(DIM, width - 1)
        want = expected(past, new, weight, bias, activation == "silu")
        close(got[:, start : start + n], want)
        assert torch.equal(states[slot], torch.cat((past, new), 1)[:, 1 - width :])
    rest = [s for s in range(SLOTS) if s not in slots]
    assert torch.equal(states[rest], before[rest])


def test_decode_moves_the_state_on() -> None:
    """Red if a padding row writes a slot, or the state is not shifted."""
    x, weight = torch.randn(3, DIM), torch.randn(DIM, 4)
    states, slots = torch.randn(SLOTS, DIM, 3), [2, -1, 6]
    before = states.clone()
    got = causal_conv1d_update_cpu(
        x, states, weight, None, "silu", conv_state_indices=torch.tensor(slots)
    )
    for i, slot in [(0, 2), (2, 6)]:
        close(
            got[i, :, None], expected(before[slot], x[i, :, None], weight, None, True)
        )
        want = torch.cat((before[slot][:, 1:], x[i, :, None]), 1)
        assert torch.equal(states[slot], want)
    assert torch.equal(states[[0, 1, 3, 4, 5, 7]], before[[0, 1, 3, 4, 5, 7]])


# Next child and next sibling; nodes 1 and 2 are children of 0, 3 and 4 of 1.
CHILD, SIBLING = [1, 3, -1, -1, -1], [-1, 2, -1, 4, -1]
PATHS = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4]]


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_verify_keeps_every_window(tree: bool) -> None:
    """Red if a tree node continues its index neighbour, or the state moves on."""
    n, width, slots, rows = 5, 4, [4, 1], [3, 0]
    x, weight = torch.randn(2, n, DIM).transpose(1, 2), torch.randn(DIM, width)
    states = torch.randn(SLOTS, DIM, width - 1)
    before = states.clone()
    kept = torch.full((4, n + 1, DIM, width - 1), 7.0)
    parents = torch.full((2, n), -9, dtype=torch.int32)
    links = {
        "retrieve_next_token": torch.tensor([CHILD, CHILD]) if tree else None,
        "retrieve_next_sibling": torch.tensor([SIBLING, SIBLING]) if tree else None,
        "retrieve_parent_token": parents if tree else None,
    }
    got = causal_conv1d_update_cpu(
        x,
        states,
        weight,
        None,
        "silu",
        conv_state_indices=torch.tensor(slots),
        intermediate_conv_window=kept,
        intermediate_state_indices=torch.tensor(rows),
        **links,
    )
    assert torch.equal(states, before)
    for i, (slot, row) in enumerate(zip(slots, rows)):
        for t in range(n):
            path = PATHS[t] if tree else list(range(t + 1))
            inputs = torch.cat((before[slot], x[i][:, path]), 1)
            want = expected(before[slot], x[i][:, path], weight, None, True)
            close(got[i, :, t], want[:, -1])
            assert torch.equal(kept[row, t], inputs[:, 1 - width :])
    assert bool((kept[[1, 2]] == 7).all()) and bool((kept[:, n] == 7).all())
    if tree:
        assert parents[:, 1:].tolist() == [[0, 0, 1, 1]] * 2


def test_a_state_of_another_width_is_refused() -> None:
    """Red if a window of the wrong length is silently cut."""
    with pytest.raises(ValueError, match="width 4 needs 3"):
        causal_conv1d_update_cpu(
            torch.zeros(1, DIM), torch.zeros(1, DIM, 2), torch.zeros(DIM, 4)
        )
