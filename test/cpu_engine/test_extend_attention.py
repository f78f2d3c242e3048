"""`extend_attention_cpu` against scalar loops in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from attention_reference import OPTIONS, Pool, make_pool, naive
from sgl_kernel import attention, extend

extend_op = torch.ops.sgl_kernel.extend_attention_cpu


def run_extend(
    pool: Pool, query: torch.Tensor, new: list[int], given: bool = True, **options
) -> torch.Tensor:
    """The op in the call's argument order; two padding rows behind the queries."""
    tokens = [
        (i, position)
        for i, (length, n) in enumerate(zip(pool.lengths, new))
        for position in range(length - n, length)
    ]
    keys = torch.stack([pool.at(pool.keys, *token) for token in tokens])
    values = torch.stack([pool.at(pool.values, *token) for token in tokens])
    rows = len(tokens) + 2
    padded = torch.cat((query, query.new_full((2, *query.shape[1:]), math.nan)))
    output = torch.full((rows, query.shape[1], values.shape[-1]), math.nan)
    lengths = torch.tensor(new, dtype=torch.int32)
    extend_op(
        padded,
        keys if given else None,
        values if given else None,
        output,
        pool.keys,
        pool.values,
        1.0,
        1.0,
        pool.table,
        pool.rows,
        torch.tensor(pool.lengths),
        lengths,
        (lengths.cumsum(0) - lengths).to(torch.int32),
        max(new),
        options["scale"],
        options.get("cap", 0.0),
        False,
        options.get("window", 0),
        None,
        options.get("sinks"),
        options.get("tree_mask"),
        options.get("causal", True),
    )
    assert torch.equal(output[-2:], torch.zeros_like(output[-2:]))
    return output[:-2]


def check_extend(
    pool: Pool,
    query: torch.Tensor,
    new: list[int],
    got: torch.Tensor,
    seen: Callable[[int, int], list[int]],
    options: dict,
) -> None:
    """Compare with `naive` where query j of request i sees the positions `seen(i, j)`."""
    row = 0
    for i, n in enumerate(new):
        for j in range(n):
            want = naive(
                pool,
                query[row],
                i,
                seen(i, j),
                options["scale"],
                options.get("cap", 0.0),
                options.get("sinks"),
            )
            torch.testing.assert_close(got[row].double(), want, atol=2e-6, rtol=2e-5)
            row += 1


@pytest.mark.parametrize("given", [True, False], ids=["new KV given", "from the pool"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize(
    "lengths, new",
    [
        pytest.param([6], [6], id="no prefix"),
        pytest.param([9, 4, 12], [4, 4, 4], id="verify, one without prefix"),
        pytest.param([7, 5, 11, 3], [2, 5, 1, 0], id="ragged, one with no new token"),
    ],
)
def test_extend_equals_scalar_loops(lengths, new, options, given) -> None:
    """Red if a query sees a later token, or the prefix of another request."""
    pool = make_pool(lengths, 2, 8, 6)
    query = torch.randn(sum(new), 4, 8)
    options = {"scale": 0.35, **options}
    if options.get("sinks"):
        options["sinks"] = torch.randn(4)
    got = run_extend(pool, query, new, given, **options)

    def seen(i: int, j: int) -> list[int]:
        last = lengths[i] - new[i] + j
        window = options.get("window", last + 1)
        return list(range(max(0, last - window + 1), last + 1))

    check_extend(pool, query, new, got, seen, options)


def test_extend_without_causal_mask_sees_every_token() -> None:
    """Red if `is_causal=False` is ignored."""
    pool, new = make_pool([5, 8], 1, 8, 8), [5, 3]
    query, options = torch.randn(8, 2, 8), {"scale": 0.3, "causal": False}
    got = run_extend(pool, query, new, **options)
    check_extend(
        pool, query, new, got, lambda i, j: list(range(pool.lengths[i])), options
    )


# Nodes of a tree of 5: parents 0, 0, 1, 1; depths 0, 1, 1, 2, 2.
PATHS = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4]]


@pytest.mark.parametrize("window", [0, 3])
def test_extend_follows_a_tree(window: int) -> None:
    """Red if siblings see each other, or the window counts nodes instead of depth."""
    lengths, new = [5 + 5, 1 + 5], [5, 5]
    pool, query = make_pool(lengths, 2, 8, 8), torch.randn(10, 4, 8)
    mask = torch.zeros(2, 5, 5, dtype=torch.bool)
    for node, path in enumerate(PATHS):
        mask[:, node, path] = True
    options = {"scale": 0.3, "window": window, "tree_mask": mask.flatten()}
    got = run_extend(pool, query, new, **options)

    def seen(i: int, j: int) -> list[int]:
        prefix = lengths[i] - 5
        path = list(range(prefix)) + [prefix + node for node in PATHS[j]]
        return path[-window:] if window else path

    check_extend(pool, query, new, got, seen, options)


def test_extend_takes_new_keys_of_another_form_than_the_pool() -> None:
    """Red if a prefill of latent attention reads its own tokens from the pool."""
    latent = make_pool([4], 1, 12, 8)
    by_head = make_pool([4], 3, 5, 4)
    order = [int(slot) for slot in by_head.table[1, :4]]
    query, output = torch.randn(4, 3, 5), torch.empty(4, 3, 4)
    lengths, start = torch.tensor([4]), torch.tensor([0])
    extend_op(
        *(query, by_head.keys[order], by_head.values[order], output),
        *(latent.keys, latent.keys[..., :8], 1.0, 1.0, latent.table, latent.rows),
        *(lengths, lengths.int(), start.int(), 4, 0.4, 0.0, False, 0),
        *(None, None, None, True),
    )
    for j in range(4):
        want = naive(by_head, query[j], 0, list(range(j + 1)), 0.4)
        torch.testing.assert_close(output[j].double(), want, atol=2e-6, rtol=2e-5)


def test_extend_in_blocks_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red if a later block of queries or requests uses the first block's mask."""
    pool, new = make_pool([9, 12, 7], 2, 8, 8), [6, 6, 6]
    query = torch.randn(18, 4, 8)
    whole = run_extend(pool, query, new, scale=0.3, window=5)
    monkeypatch.setattr(attention, "MAX_GATHERED_KEYS", 24)
    monkeypatch.setattr(extend, "MAX_SCORES", 4 * 2 * 12 * 2)
    parts = run_extend(pool, query, new, scale=0.3, window=5)
    torch.testing.assert_close(parts, whole)


def test_a_mask_that_is_no_tree_is_refused() -> None:
    """Red if a mask of the wrong size is read as if it fitted."""
    pool = make_pool([4, 4], 1, 8, 8)
    with pytest.raises(ValueError, match="tree_mask has 7 cells"):
        run_extend(
            pool,
            torch.randn(4, 1, 8),
            [2, 2],
            scale=1.0,
            tree_mask=torch.ones(7, dtype=torch.bool),
        )
