"""What a rank does in the tests of a draft tree's words over real process groups."""

from typing import Dict, List, Tuple

import numpy as np
import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.test.kits.shard_winner_kit import Bounds, Selection, shard_of
from sglang.test.kits.shard_winner_rank_kit import (
    as_bits,
    gather_words,
    random_logits,
)


def select_topk_on_rank(
    logits: torch.Tensor, rank: int, bounds: Bounds, k: int
) -> Selection:
    """The merged candidates as this rank computes them from the gathered words."""
    start, end = bounds[rank]
    words = shard_winner(
        shard_of(logits, bounds[rank]), valid_width=end - start, vocab_start=start, k=k
    )
    merged = merge_shard_winners(
        gather_words(words, len(bounds)),
        rows=logits.shape[0],
        vocab_size=bounds[-1][1],
        k=k,
    )
    return Selection(*merged)


def random_topk(
    rank: int, world_size: int, rows: int, cases: List[Tuple[int, str, Bounds]]
) -> List[Dict[str, np.ndarray]]:
    """Candidates of random logits for each ``(k, dtype, bounds)`` in turn."""
    found = []
    for k, dtype, bounds in cases:
        logits = random_logits(rows, bounds[-1][1], dtype)
        found.append(as_bits(select_topk_on_rank(logits, rank, bounds, k)))
    return found


def given_topk(
    rank: int, world_size: int, logits: np.ndarray, bounds: Bounds, k: int
) -> Dict[str, np.ndarray]:
    return as_bits(select_topk_on_rank(torch.from_numpy(logits), rank, bounds, k))
