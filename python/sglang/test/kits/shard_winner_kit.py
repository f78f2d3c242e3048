"""Reference, shard builder and test case for the packed words of a draft head.

The reference works on the gathered, unpadded logits with NumPy in FP64: largest
value, then smallest id. It shares no code with the kernels.
"""

import math
from typing import Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch

from sglang.kernels.ops.speculative import shard_winner_few_rows
from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.speculative.draft_confidence import selected_probability
from sglang.test.test_utils import CustomTestCase

LOGSUMEXP_TOLERANCE = 2e-5
"""Relative or absolute, whichever is larger."""

Bounds = Sequence[Tuple[int, int]]
"""First id and end of every rank's part of the vocabulary."""


class Selection(NamedTuple):
    """Per row: token id, its logit and the log-sum-exp over the vocabulary."""

    token_ids: torch.Tensor
    logits: torch.Tensor
    logsumexp: torch.Tensor


def reference_selection(logits: torch.Tensor, softcap: Optional[float] = None):
    """``Selection`` of gathered ``[rows, vocab]`` logits; log-sum-exp in FP64."""
    values = logits.float().cpu()
    if softcap is not None:
        values = softcap * torch.tanh(values / softcap)
    rows = [_reference_row(row) for row in values.numpy()]
    ids, best, logsumexp = zip(*rows) if rows else ((), (), ())
    return Selection(
        torch.tensor(ids, dtype=torch.int64),
        torch.tensor(best, dtype=torch.float64),
        torch.tensor(logsumexp, dtype=torch.float64),
    )


def _reference_row(row: np.ndarray) -> Tuple[int, float, float]:
    numbers = row[~np.isnan(row)]
    best = float(numbers.max()) if numbers.size else -math.inf
    token_id = 0 if best == -math.inf else int(np.flatnonzero(row == best)[0])
    if numbers.size < row.size:
        return token_id, best, math.nan
    if math.isinf(best):
        return token_id, best, best
    return token_id, best, best + math.log(np.exp(row.astype(np.float64) - best).sum())


class MergeCase(NamedTuple):
    """Words of one row, a rank each, and what their merge is."""

    name: str
    ranks: Tuple[Tuple[float, float, int], ...]
    """Value, log-sum-exp and id word of a rank."""
    token_id: int
    logit: float
    logsumexp: float


_INF, _NAN, _SIGN = math.inf, math.nan, -(2**31)
MERGE_VOCAB = 1000
MERGE_CASES = (
    MergeCase("number", ((1.0, 1.0, 3), (2.0, 2.0, 7)), 7, 2.0, 2.3132617),
    MergeCase("tie, later rank", ((2.0, 2.0, 9), (2.0, 2.0, 4)), 4, 2.0, 2.6931472),
    MergeCase("tie, first rank", ((2.0, 2.0, 4), (2.0, 2.0, 9)), 4, 2.0, 2.6931472),
    MergeCase("zeros tie", ((0.0, 0.0, 9), (-0.0, 0.0, 4)), 4, 0.0, 0.6931472),
    MergeCase(
        "sign bit on id 0", ((-1.0, -1.0, 5), (3.0, 3.0, _SIGN)), 0, 3.0, 3.01815
    ),
    MergeCase("NaN first", ((_NAN, _NAN, 3), (1.0, 1.0, 900)), 900, 1.0, _NAN),
    MergeCase("NaN last", ((1.0, 1.0, 900), (_NAN, _NAN, 3)), 900, 1.0, _NAN),
    MergeCase("NaN value only", ((_NAN, 0.0, 3), (0.0, 0.0, 900)), 900, 0.0, 0.6931472),
    MergeCase("NaN and -inf", ((_NAN, _NAN, 3), (-_INF, -_INF, 7)), 7, -_INF, _NAN),
    MergeCase("NaN and +inf", ((_NAN, _NAN, 3), (_INF, _INF, 7)), 7, _INF, _NAN),
    MergeCase("NaN everywhere", ((_NAN, _NAN, 3), (_NAN, _NAN, 7)), 999, -_INF, _NAN),
    MergeCase("NaN log-sum-exp", ((1.0, _NAN, 3), (2.0, 2.0, 7)), 7, 2.0, _NAN),
    MergeCase("+inf tie", ((_INF, _INF, 8), (_INF, _INF, 5)), 5, _INF, _INF),
    MergeCase("-inf tie", ((-_INF, -_INF, 8), (-_INF, -_INF, 5)), 5, -_INF, -_INF),
    MergeCase("empty shard", ((-_INF, -_INF, 2**31 - 1), (-4.0, -4.0, 5)), 5, -4, -4.0),
    MergeCase("rising", ((-9e4, -9e4, 1), (0.0, 0.0, 2), (9e4, 9e4, 3)), 3, 9e4, 9e4),
    MergeCase("falling", ((9e4, 9e4, 3), (0.0, 0.0, 2), (-9e4, -9e4, 1)), 3, 9e4, 9e4),
    MergeCase("later rank adds", ((1.0, 1.0, 0), (0.0, 1.0, 5)), 0, 1.0, 1.6931472),
)
"""What ``merge_shard_winners`` promises for every kind of word, for any implementation."""


def words_of(case: MergeCase, rows_padded: int) -> torch.Tensor:
    """``[ranks * 3, rows_padded]`` with the case's words in row 0, zeros behind it."""
    words = torch.zeros(3 * len(case.ranks), rows_padded)
    for rank, (value, logsumexp, token_id) in enumerate(case.ranks):
        words[3 * rank, 0], words[3 * rank + 1, 0] = value, logsumexp
        words.view(torch.int32)[3 * rank + 2, 0] = token_id
    return words


def reference_merge(words: torch.Tensor, vocab: int) -> Selection:
    """``Selection`` of ``[ranks * 3, rows]`` words, rank by rank, in FP64."""
    ids, best, logsumexp = [], [], []
    for row in range(words.shape[1]):
        column = words[:, row].contiguous()
        bits = column.view(torch.int32).tolist()[2::3]
        values, parts = column.double().tolist()[::3], column.double()[1::3]
        numbers = [v for v in values if not math.isnan(v)]
        top = max(numbers, default=-math.inf)
        tied = [i & 0x7FFFFFFF for v, i in zip(values, bits) if v == top]
        ids.append(min([*tied, vocab - 1]))
        best.append(top)
        logsumexp.append(torch.logsumexp(parts, dim=0).item())
    return Selection(
        torch.tensor(ids),
        torch.tensor(best, dtype=torch.float64),
        torch.tensor(logsumexp, dtype=torch.float64),
    )


def even_bounds(vocab: int, tp: int) -> List[Tuple[int, int]]:
    """As a padded LM head is split: equal widths, the last ranks short or empty."""
    width = -(-vocab // tp)
    starts = [min(rank * width, vocab) for rank in range(tp)]
    return [(start, min(start + width, vocab)) for start in starts]


def shard_of(
    logits: torch.Tensor,
    bound: Tuple[int, int],
    *,
    padding_columns: int = 3,
    padding: float = math.inf,
    row_gap: int = 0,
) -> torch.Tensor:
    """A rank's ``[rows, width]`` logits: its columns, then padding columns.

    ``row_gap`` makes the rows non-contiguous, with NaN between them.
    """
    start, end = bound
    width = end - start + padding_columns
    buffer = logits.new_full((logits.shape[0], width + row_gap), math.nan)
    buffer[:, : end - start] = logits[:, start:end]
    buffer[:, end - start : width] = padding
    return buffer[:, :width]


def rewrite_zero_words(words: torch.Tensor) -> torch.Tensor:
    """What SGLang's push plane does to an all-zero word: it gets a sign bit."""
    bits = words.view(torch.int32)
    return torch.where(bits == 0, torch.iinfo(torch.int32).min, bits).view(
        torch.float32
    )


def peak_cpu_bytes(function: Callable[[], object]) -> int:
    """Peak of what ``function`` allocates through torch's CPU allocator."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    events = [event for event in events if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


class ShardWinnerCase(CustomTestCase):
    """Runs shards through one implementation and compares with the reference."""

    impl: Optional[str] = None
    device = "cpu"

    def select(
        self,
        logits: torch.Tensor,
        bounds: Optional[Bounds] = None,
        *,
        tp: int = 4,
        softcap: Optional[float] = None,
        k: int = 1,
        transport=lambda words: words,
        **shard_options,
    ) -> Selection:
        """Shard ``[rows, vocab]`` logits over ranks, reduce, gather and merge."""
        rows, vocab = logits.shape
        words = []
        for bound in bounds or even_bounds(vocab, tp):
            shard = shard_of(logits.to(self.device), bound, **shard_options)
            words.append(
                shard_winner(
                    shard,
                    valid_width=bound[1] - bound[0],
                    vocab_start=bound[0],
                    softcap=softcap,
                    k=k,
                    impl=self.impl,
                )
            )
        gathered = transport(torch.cat(words))
        options = dict(vocab_size=vocab, k=k, impl=self.impl)
        return Selection(*merge_shard_winners(gathered, rows=rows, **options))

    def check(self, logits: torch.Tensor, *args, softcap=None, **options) -> Selection:
        """``select`` and compare with the reference."""
        actual = self.select(logits, *args, softcap=softcap, **options)
        assert_matches_reference(actual, reference_selection(logits, softcap))
        return actual

    def rows_past_31_bits(self) -> torch.Tensor:
        """Logits FP16 ``[3, 64]`` whose last row starts past element 2^31; 2^32 elements
        before its place stand larger values. Skips the test without the address space.
        """
        stride, rows = 2**30 + 64, 3
        elements = 2**31 + rows * stride
        try:
            buffer = torch.empty(elements, dtype=torch.float16, device=self.device)
        except RuntimeError as error:
            self.skipTest(f"no {elements * 2} bytes of address space: {error}")
        logits = buffer.as_strided((rows, 64), (stride, 1), 2**31)
        generator = torch.Generator().manual_seed(0)
        logits.copy_(torch.randn(rows, 64, generator=generator) * 3 - 1000)
        buffer[2 * stride - 2**31 :][:64].copy_(torch.arange(64))
        return logits


class FewRowsCase(ShardWinnerCase):
    """The same rows, so few at a time that the CPU has an implementation for them."""

    def select(self, logits: torch.Tensor, *args, **options) -> Selection:
        most = shard_winner_few_rows.MOST_ROWS
        assert shard_winner_few_rows.takes(logits, min(most, len(logits)), k=1)
        select = super().select
        parts = [select(part, *args, **options) for part in logits.split(most)]
        return Selection(*(torch.cat(field) for field in zip(*parts)))


def assert_matches_reference(actual: Selection, expected: Selection) -> None:
    """Ids and logits equal, log-sum-exp and probability within the contract."""
    ids, logits, logsumexp = (field.cpu() for field in actual)
    assert ids.dtype == torch.int64 and ids.shape == expected.token_ids.shape
    assert logits.dtype == logsumexp.dtype == torch.float32
    wrong = (ids != expected.token_ids).nonzero().flatten().tolist()
    assert not wrong, f"ids differ in rows {wrong[:8]}: {actual} {expected}"
    torch.testing.assert_close(logits.double(), expected.logits, rtol=0, atol=0)
    assert_logsumexp(logsumexp, expected)
    assert_probability(logits, logsumexp, expected)


def assert_logsumexp(logsumexp: torch.Tensor, expected: Selection) -> None:
    """FP32 log-sum-exp ``[rows]`` within the contract."""
    torch.testing.assert_close(
        logsumexp.double(),
        expected.logsumexp,
        rtol=LOGSUMEXP_TOLERANCE,
        atol=LOGSUMEXP_TOLERANCE,
        equal_nan=True,
    )


def assert_probability(
    logits: torch.Tensor, logsumexp: torch.Tensor, expected: Selection
) -> None:
    """Probability of logits FP32 within the contract; shapes as in ``expected``."""
    probability = selected_probability(logits, logsumexp).double()
    finite = expected.logsumexp.isfinite()
    exact = torch.exp(expected.logits - expected.logsumexp).where(finite, 0.0)
    size = logsumexp.abs().where(finite, 0.0)
    step = torch.nextafter(size, torch.full_like(size, math.inf)) - size
    excess = (probability - exact).abs() - LOGSUMEXP_TOLERANCE - step
    assert not (excess > 0).any(), f"probability is off by {excess.max()} too much"
    assert (probability >= 0).all() and (probability <= 1).all()
