"""Reference and test case for the packed words of a draft tree: ``k`` best a row.

The rule: larger values first, equal ones by id, smallest first; a NaN counts as -inf.
"""

import math
from typing import Optional

import numpy as np
import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.test.kits.shard_winner_kit import (
    LOGSUMEXP_TOLERANCE,
    Bounds,
    Selection,
    ShardWinnerCase,
    _assert_probability,
    even_bounds,
    reference_selection,
    shard_of,
)


def reference_topk(
    logits: torch.Tensor, k: int, softcap: Optional[float] = None
) -> Selection:
    """``k`` first ids and logits ``[rows, k]`` of gathered logits, log-sum-exp FP64."""
    values = logits.float().cpu()
    if softcap is not None:
        values = softcap * torch.tanh(values / softcap)
    rows = np.where(values.isnan(), -math.inf, values.double().numpy())
    ids = np.arange(rows.shape[1])
    first = [np.lexsort((ids, -row))[:k] for row in rows]
    token_ids = torch.from_numpy(np.array(first).reshape(-1, k))
    return Selection(
        token_ids,
        torch.from_numpy(rows).gather(1, token_ids),
        reference_selection(logits, softcap).logsumexp,
    )


def assert_matches_topk(actual: Selection, expected: Selection) -> None:
    """Ids and logits equal, log-sum-exp and probabilities within the contract."""
    ids, logits, logsumexp = (field.cpu() for field in actual)
    assert ids.dtype == torch.int64 and logits.dtype == logsumexp.dtype == torch.float32
    assert ids.shape == logits.shape == expected.token_ids.shape
    wrong = (ids != expected.token_ids).any(dim=1).nonzero().flatten().tolist()
    assert not wrong, f"ids differ in rows {wrong[:8]}: {actual} {expected}"
    torch.testing.assert_close(logits.double(), expected.logits, rtol=0, atol=0)
    assert not logits[logits == 0].signbit().any()
    torch.testing.assert_close(
        logsumexp.double(),
        expected.logsumexp,
        rtol=LOGSUMEXP_TOLERANCE,
        atol=LOGSUMEXP_TOLERANCE,
        equal_nan=True,
    )
    spread = (logsumexp.unsqueeze(1).expand_as(logits), expected.logsumexp.unsqueeze(1))
    per_candidate = expected._replace(logsumexp=spread[1].expand_as(logits))
    _assert_probability(logits, spread[0], per_candidate)


def first_of(selection: Selection) -> Selection:
    """The winner alone, as ``k`` = 1 has it."""
    return Selection(
        selection.token_ids[:, 0], selection.logits[:, 0], selection.logsumexp
    )


class ShardTopkCase(ShardWinnerCase):
    """Runs the case tables of ``k`` = 1 with ``k`` winners a row."""

    k = 4

    def select_topk(
        self,
        logits: torch.Tensor,
        bounds: Optional[Bounds] = None,
        *,
        k: int,
        tp: int = 4,
        softcap: Optional[float] = None,
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
        merged = merge_shard_winners(
            transport(torch.cat(words)),
            rows=rows,
            vocab_size=vocab,
            k=k,
            impl=self.impl,
        )
        return Selection(*merged)

    def check_topk(self, logits: torch.Tensor, *args, k=None, **options) -> Selection:
        """``select_topk`` and compare with the reference."""
        k = min(k or self.k, logits.shape[1])
        actual = self.select_topk(logits, *args, k=k, **options)
        if k == 1:
            actual = actual._replace(
                token_ids=actual.token_ids.unsqueeze(1),
                logits=actual.logits.unsqueeze(1),
            )
        expected = reference_topk(logits, k, options.get("softcap"))
        self.compare(actual, expected)
        return actual

    def compare(self, actual: Selection, expected: Selection) -> None:
        assert_matches_topk(actual, expected)

    def check(self, logits: torch.Tensor, *args, **options) -> Selection:
        return first_of(self.check_topk(logits, *args, **options))
