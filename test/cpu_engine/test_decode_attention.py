"""`decode_attention_cpu` against scalar loops in float64."""

from __future__ import annotations

import math

import pytest
import torch
from attention_reference import OPTIONS, Pool, make_pool, naive
from sgl_kernel import attention

decode_op = torch.ops.sgl_kernel.decode_attention_cpu


def run_decode(pool: Pool, query: torch.Tensor, **options) -> torch.Tensor:
    """The op in the call's argument order, the last position's KV given as new."""
    loc = torch.stack(
        [pool.table[row, n - 1] for row, n in zip(pool.rows, pool.lengths)]
    ).long()
    new_key, new_value = pool.keys[loc].clone(), pool.values[loc].clone()
    expected = new_value.clone()
    pool.keys[loc], pool.values[loc] = math.nan, math.nan
    if options.get("value_is_unused"):
        new_value.fill_(math.nan)
    batch, heads = query.shape[:2]
    output = torch.full((batch, heads, pool.values.shape[-1]), math.nan)
    output = output.to(query.dtype)
    decode_op(
        query,
        pool.keys,
        pool.values,
        options.get("k_scale", 1.0),
        options.get("v_scale", 1.0),
        output,
        new_key,
        new_value,
        loc,
        torch.zeros(batch, heads, 8, output.shape[-1] + 1),
        pool.table,
        pool.rows,
        torch.tensor(pool.lengths),
        options["scale"],
        options.get("cap", 0.0),
        False,
        options.get("window", 0),
        None,
        options.get("sinks"),
    )
    assert torch.equal(pool.keys[loc], new_key)
    assert torch.equal(pool.values[loc], expected)
    return output


SHAPES = [
    pytest.param([5], 1, 1, 8, 8, id="one request, one head"),
    pytest.param([1, 9, 4, 30], 6, 2, 8, 8, id="grouped heads, ragged"),
    pytest.param([12, 3], 4, 4, 16, 6, id="value heads narrower"),
    pytest.param([7, 7, 7], 8, 1, 4, 12, id="one kv head, value heads wider"),
]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("lengths, heads, kv_heads, dim, value_dim", SHAPES)
def test_decode_equals_scalar_loops(
    lengths, heads, kv_heads, dim, value_dim, options
) -> None:
    """Red if a head reads another group's KV, or a window is off by one."""
    pool = make_pool(lengths, kv_heads, dim, value_dim)
    query = torch.randn(len(lengths), heads, dim)
    options = {"scale": dim**-0.5, **options}
    if options.get("sinks"):
        options["sinks"] = torch.randn(heads)
    got = run_decode(pool, query, **options)
    for i, length in enumerate(lengths):
        first = max(0, length - options.get("window", length))
        seen = list(range(first, length))
        cap, sinks = options.get("cap", 0.0), options.get("sinks")
        want = naive(pool, query[i], i, seen, options["scale"], cap, sinks)
        torch.testing.assert_close(got[i].double(), want, atol=2e-6, rtol=2e-5)


def test_decode_in_bf16_rounds_only_the_result() -> None:
    """Red if scores or weights are rounded to BF16 on the way."""
    pool = make_pool([40, 11], 2, 16, 16, torch.bfloat16)
    query = torch.randn(2, 4, 16).bfloat16()
    got = run_decode(pool, query, scale=0.25)
    for i, length in enumerate(pool.lengths):
        want = naive(pool, query[i], i, list(range(length)), 0.25)
        torch.testing.assert_close(got[i].double(), want, atol=1e-3, rtol=2**-8)


def test_decode_applies_the_pool_scales() -> None:
    """Red if `k_scale` or `v_scale` is ignored."""
    pool = make_pool([6], 1, 8, 8)
    query = torch.randn(1, 2, 8)
    got = run_decode(pool, query, scale=0.3, k_scale=2.0, v_scale=0.5)
    want = naive(pool, query[0], 0, list(range(6)), 0.6) * 0.5
    torch.testing.assert_close(got[0].double(), want, atol=2e-6, rtol=2e-5)


def test_decode_over_a_latent_pool_reads_values_from_the_keys() -> None:
    """Red if the value write of latent attention lands in the shared buffer."""
    pool = make_pool([9, 2], 1, 12, 8)
    pool.values = pool.keys[..., :8]
    query = torch.randn(2, 6, 12)
    got = run_decode(pool, query, scale=0.2, value_is_unused=True)
    for i, length in enumerate(pool.lengths):
        want = naive(pool, query[i], i, list(range(length)), 0.2)
        torch.testing.assert_close(got[i].double(), want, atol=2e-6, rtol=2e-5)


def test_decode_in_blocks_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if the requests of a later block use the first block's rows."""
    pool = make_pool([4, 9, 2, 6, 5], 2, 8, 8)
    query = torch.randn(5, 4, 8)
    whole = run_decode(pool, query, scale=0.3)
    monkeypatch.setattr(attention, "MAX_GATHERED_KEYS", 18)
    torch.testing.assert_close(run_decode(pool, query, scale=0.3), whole)


def test_decode_of_an_empty_request_is_zero() -> None:
    """Red if a padding row of length 0 turns into NaN."""
    pool = make_pool([3], 1, 4, 4)
    table = torch.stack([pool.table[1], pool.table[1]])
    query, output = torch.randn(2, 1, 4), torch.full((2, 1, 4), math.nan)
    lengths = torch.tensor([0, 3])
    decode_op(
        *(query, pool.keys, pool.values, 1.0, 1.0, output, None, None, None),
        *(torch.zeros(2, 1, 8, 5), table, torch.arange(2), lengths),
        *(0.5, 0.0, False, 0, None, None),
    )
    assert torch.equal(output[0], torch.zeros(1, 4))
    want = naive(pool, query[1], 0, [0, 1, 2], 0.5)
    torch.testing.assert_close(output[1].double(), want, atol=2e-6, rtol=2e-5)


def test_new_keys_without_slots_are_refused() -> None:
    """Red if a missing `loc` broadcasts the new key over the whole pool."""
    pool = make_pool([3], 1, 4, 4)
    query, output = torch.randn(1, 1, 4), torch.empty(1, 1, 4)
    with pytest.raises(ValueError, match="without slots"):
        decode_op(
            *(query, pool.keys, pool.values, 1.0, 1.0, output, query, query, None),
            *(torch.zeros(1, 1, 8, 5), pool.table, pool.rows, torch.tensor([3])),
            *(0.5, 0.0, False, 0, None, None),
        )
