"""The gated delta rule against scalar loops over one head in float64."""

from __future__ import annotations

import math

import pytest
import sgl_kernel.mamba
import torch

HEADS, KEY_HEADS, KEY, VALUE, SLOTS = 4, 2, 6, 5, 9
gating_op = torch.ops.sgl_kernel.fused_gdn_gating_cpu
update_op = torch.ops.sgl_kernel.fused_sigmoid_gating_delta_rule_update_cpu


def make_inputs(tokens: int) -> dict[str, torch.Tensor]:
    return {
        "A_log": torch.randn(HEADS),
        "dt_bias": torch.randn(HEADS),
        "q": torch.randn(1, tokens, KEY_HEADS, KEY),
        "k": torch.randn(1, tokens, KEY_HEADS, KEY),
        "v": torch.randn(1, tokens, HEADS, VALUE),
        "a": torch.randn(tokens, HEADS),
        "b": torch.randn(tokens, HEADS),
    }


def make_pool() -> torch.Tensor:
    return torch.randn(SLOTS, HEADS, VALUE, KEY)


def naive_token(
    inputs: dict[str, torch.Tensor], token: int, head: int, state: list[list[float]]
) -> tuple[list[list[float]], list[float]]:
    """New state, value-major, and output of one head."""
    key_head = head // (HEADS // KEY_HEADS)
    q, k = (inputs[name][0, token, key_head].tolist() for name in "qk")
    v = inputs["v"][0, token, head].tolist()
    q_norm = math.sqrt(math.fsum(x * x for x in q) + 1e-6) * math.sqrt(KEY)
    k_norm = math.sqrt(math.fsum(x * x for x in k) + 1e-6)
    q, k = [x / q_norm for x in q], [x / k_norm for x in k]
    raw = float(inputs["a"][token, head]) + float(inputs["dt_bias"][head])
    decay = math.exp(
        -math.exp(float(inputs["A_log"][head])) * math.log1p(math.exp(raw))
    )
    gate = 1 / (1 + math.exp(-float(inputs["b"][token, head])))
    new, out = [], []
    for row, target in zip(state, v):
        row = [decay * x for x in row]
        error = gate * (target - math.fsum(x * y for x, y in zip(row, k)))
        row = [x + error * y for x, y in zip(row, k)]
        new.append(row)
        out.append(math.fsum(x * y for x, y in zip(row, q)))
    return new, out


def naive(
    inputs: dict[str, torch.Tensor],
    first: int,
    states: list[list[list[float]]],
    parents: list[int],
) -> tuple[list, list]:
    """States `[token][head]` and outputs of one sequence from token `first` on.

    `parents[t]` is the token whose state t continues; -1 for the given `states`.
    """
    behind, outputs = [], []
    for t, parent in enumerate(parents):
        before = states if parent < 0 else behind[parent]
        both = [naive_token(inputs, first + t, h, before[h]) for h in range(HEADS)]
        behind.append([state for state, _ in both])
        outputs.append([out for _, out in both])
    return behind, outputs


def close(got: torch.Tensor, want: list) -> None:
    want = torch.tensor(want, dtype=torch.float64)
    torch.testing.assert_close(got.double(), want, atol=2e-6, rtol=2e-5)


def start_states(pool: torch.Tensor, slot: int) -> list:
    empty = torch.zeros(HEADS, VALUE, KEY)
    return (pool[slot] if slot >= 0 else empty).tolist()


LENGTHS = [[1, 1, 1], [3, 7, 1, 4], [5]]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_decode_updates_the_states(lengths: list[int]) -> None:
    """Red if a key head serves the wrong value heads, or a state lands in another slot."""
    inputs, pool, slots = make_inputs(sum(lengths)), make_pool(), [6, 2, -1, 7]
    slots = slots[: len(lengths)]
    before = pool.clone()
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    got = update_op(
        **inputs,
        initial_state_source=pool,
        initial_state_indices=torch.tensor(slots, dtype=torch.int32),
        cu_seqlens=bounds.int(),
        use_qk_l2norm_in_kernel=True,
        softplus_beta=1.0,
        softplus_threshold=20.0,
    )
    assert got.shape == inputs["v"].shape
    for slot, first, n in zip(slots, bounds.tolist(), lengths):
        states = start_states(before, slot)
        behind, outputs = naive(inputs, first, states, list(range(-1, n - 1)))
        close(got[0, first : first + n], outputs)
        if slot >= 0:
            close(pool[slot], behind[-1])
    rest = [s for s in range(SLOTS) if s not in slots]
    assert torch.equal(pool[rest], before[rest])


@pytest.mark.parametrize("lengths", LENGTHS)
def test_prefill_equals_the_same_loops(lengths: list[int]) -> None:
    """Red if the prefill op takes g for a decay instead of its logarithm."""
    inputs, pool = make_inputs(sum(lengths)), make_pool()
    slots = [3, 8, 0, 5][: len(lengths)]
    before, bounds = pool.clone(), torch.tensor([0, *lengths]).cumsum(0)
    names = [inputs[name] for name in ("A_log", "a", "b", "dt_bias")]
    g, beta = gating_op(*names)
    got, last, _ = sgl_kernel.mamba.chunk_gated_delta_rule_cpu(
        q=inputs["q"],
        k=inputs["k"],
        v=inputs["v"],
        g=g,
        beta=beta,
        initial_state=pool,
        cu_seqlens=bounds.int(),
        head_first=False,
        use_qk_l2norm_in_kernel=True,
        initial_state_indices=torch.tensor(slots, dtype=torch.int32),
    )
    for i, (slot, first, n) in enumerate(zip(slots, bounds.tolist(), lengths)):
        states = start_states(before, slot)
        behind, outputs = naive(inputs, first, states, list(range(-1, n - 1)))
        close(got[0, first : first + n], outputs)
        close(pool[slot], behind[-1])
        close(last[i], behind[-1])


TREES = {
    "chain": None,
    # Parents by node; node 0 is the last verified token.
    "tree": [[0, 0, 0, 1], [0, 0, 1, 2]],
}


@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
def test_verify_keeps_every_state_and_leaves_the_pool(parents) -> None:
    """Red if a sibling continues a sibling, or a rejected token reaches the pool."""
    inputs, pool, slots, rows = make_inputs(8), make_pool(), [4, 1], [2, 0]
    before = pool.clone()
    kept = torch.full((3, 5, HEADS, VALUE, KEY), 7.0)
    got = update_op(
        **inputs,
        initial_state_source=pool,
        initial_state_indices=torch.tensor(slots),
        cu_seqlens=torch.tensor([0, 4, 8]),
        use_qk_l2norm_in_kernel=True,
        is_kda=False,
        disable_state_update=True,
        intermediate_states_buffer=kept,
        intermediate_state_indices=torch.tensor(rows),
        cache_steps=4,
        retrieve_parent_token=None if parents is None else torch.tensor(parents),
    )
    assert torch.equal(pool, before)
    for i, (slot, row) in enumerate(zip(slots, rows)):
        came_from = [-1, 0, 1, 2] if parents is None else [-1, *parents[i][1:]]
        states = start_states(before, slot)
        behind, outputs = naive(inputs, 4 * i, states, came_from)
        close(got[0, 4 * i : 4 * i + 4], outputs)
        close(kept[row, :4], behind)
    assert bool((kept[1] == 7).all()) and bool((kept[:, 4] == 7).all())


def test_another_kind_of_decay_is_refused() -> None:
    """Red if Kimi's per-channel decay is computed as if it were per head."""
    with pytest.raises(NotImplementedError, match="one decay per head"):
        update_op(
            **make_inputs(1),
            initial_state_source=make_pool(),
            initial_state_indices=torch.tensor([0]),
            cu_seqlens=torch.tensor([0, 1]),
            use_qk_l2norm_in_kernel=True,
            is_kda=True,
        )
