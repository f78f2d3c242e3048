"""Reference and test case for the packed words of a draft tree: ``k`` best a row.

The rule: larger values first, equal ones by id, smallest first; a NaN counts as -inf.
"""

import math
from typing import Optional

import numpy as np
import torch

from sglang.test.kits.shard_winner_kit import (
    Selection,
    ShardWinnerCase,
    assert_logsumexp,
    assert_probability,
    reference_selection,
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
    assert_logsumexp(logsumexp, expected)
    spread = (logsumexp.unsqueeze(1).expand_as(logits), expected.logsumexp.unsqueeze(1))
    per_candidate = expected._replace(logsumexp=spread[1].expand_as(logits))
    assert_probability(logits, spread[0], per_candidate)


def first_of(selection: Selection) -> Selection:
    """The winner alone, as ``k`` = 1 has it."""
    return Selection(
        selection.token_ids[:, 0], selection.logits[:, 0], selection.logsumexp
    )


class ShardTopkCase(ShardWinnerCase):
    """Runs the case tables of ``k`` = 1 with ``k`` winners a row."""

    k = 4

    def check_topk(self, logits: torch.Tensor, *args, k=None, **options) -> Selection:
        """``select`` and compare with the reference."""
        k = min(k or self.k, logits.shape[1])
        actual = self.select(logits, *args, k=k, **options)
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
