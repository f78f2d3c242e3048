"""Adversarial logits, splits and buffers against the FP64 reference.

Run more rows with ``pytest test/property --hypothesis-profile=full``.
"""

import math
from typing import List, NamedTuple, Optional
from unittest import mock

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang.kernels.ops.speculative import shard_winner_torch as module
from sglang.test.kits.shard_winner_kit import (
    FewRowsCase,
    ShardWinnerCase,
    rewrite_zero_words,
)

ROWS = 32
"""Rows of every example: the number of rows a run checks is known beforehand."""

DTYPES = {
    torch.bfloat16: st.floats(width=32),
    torch.float16: st.floats(width=16),
    torch.float32: st.floats(width=32),
}


def special_values(dtype: torch.dtype) -> List[float]:
    info = torch.finfo(dtype)
    step = 1 + info.eps
    positive = (0.0, 1.0, step, 30.0, 128.0, 1e4, math.inf)
    positive += (info.max, info.smallest_normal, info.smallest_normal / 4)
    return [*positive, *(-value for value in positive), math.nan]


class Example(NamedTuple):
    """``[ROWS, vocab]`` logits and how the ranks hold them."""

    logits: torch.Tensor
    bounds: list
    padding: float
    padding_columns: int
    row_gap: int
    softcap: Optional[float]
    rewrite_zeros: bool


@st.composite
def examples(draw, max_vocab: int) -> Example:
    dtype = draw(st.sampled_from(sorted(DTYPES, key=str)))
    vocab = draw(st.integers(1, max_vocab))
    cuts = draw(st.lists(st.integers(0, vocab), max_size=7))
    edges = [0, *sorted(cuts), vocab]
    specials = special_values(dtype)
    value = st.one_of(st.sampled_from(specials), DTYPES[dtype])
    return Example(
        logits=_fill(draw, draw(st.lists(value, min_size=1, max_size=6)), vocab, dtype),
        bounds=list(zip(edges[:-1], edges[1:])),
        padding=draw(st.sampled_from(specials)),
        padding_columns=draw(st.integers(0, 130)),
        row_gap=draw(st.integers(0, 5)),
        softcap=draw(st.sampled_from([None, None, 30.0, 0.5])),
        rewrite_zeros=draw(st.booleans()),
    )


def _fill(draw, pool: List[float], vocab: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of random logits mixed with the pool's values, each row its own share."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.sampled_from([0.0, 1.0, 20.0, 1e4]))
    logits = random.standard_normal((ROWS, vocab), dtype=np.float32) * scale
    chosen = random.choice(np.array(pool, dtype=np.float64), (ROWS, vocab))
    share = random.choice([0.0, 1.5 / vocab, 0.3, 1.0], (ROWS, 1))
    with np.errstate(over="ignore"):
        mixed = np.where(random.random((ROWS, vocab)) < share, chosen, logits)
        return torch.from_numpy(mixed.astype(np.float32)).to(dtype)


class PropertyCase(ShardWinnerCase):
    def run_example(self, example: Example) -> None:
        logits, bounds, *_ = example
        self.check(
            logits,
            bounds,
            padding=example.padding,
            padding_columns=example.padding_columns,
            row_gap=example.row_gap,
            softcap=example.softcap,
            transport=rewrite_zero_words if example.rewrite_zeros else torch.clone,
        )


class TestShardWinnerProperty(PropertyCase):
    impl = "torch"

    @given(examples(max_vocab=700))
    def test_any_logits_in_any_split(self, example):
        # Red with any change to ties, NaN, infinities, padding or the log-sum-exp.
        self.run_example(example)

    @given(examples(max_vocab=3000))
    def test_any_logits_in_small_tiles(self, example):
        # Red if a chunk's or a tile's offset, maximum or sum is lost: the workspace
        # is made so small that every shard has several of both.
        with mock.patch.multiple(
            module, WORKSPACE_ELEMENTS=2048, _MIN_CHUNK_COLUMNS=128
        ):
            self.run_example(example)


class TestFewRowsProperty(PropertyCase, FewRowsCase):
    @given(examples(max_vocab=700))
    def test_any_logits_in_any_split(self, example):
        # Red with any change to ties, NaN, infinities, padding or the log-sum-exp.
        self.run_example(example)
