"""What a rank does in the tests of the packed words over real process groups."""

import time
from typing import Dict, List, Tuple

import numpy as np
import torch
import torch.distributed as dist

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.test.kits.shard_winner_kit import (
    Bounds,
    Selection,
    rewrite_zero_words,
    shard_of,
)


def random_logits(rows: int, vocab: int, dtype: str, seed: int = 0) -> torch.Tensor:
    """The same ``[rows, vocab]`` logits on every rank."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator) * 3
    return logits.to(getattr(torch, dtype))


def gather_words(words: torch.Tensor, world_size: int) -> torch.Tensor:
    """Rank-major ``[tp * 3, rows_padded]``."""
    parts = [torch.empty_like(words) for _ in range(world_size)]
    dist.all_gather(parts, words)
    return torch.cat(parts)


def select_on_rank(
    logits: torch.Tensor, rank: int, bounds: Bounds, rewrite_zeros: bool = False
) -> Selection:
    """The merged selection as this rank computes it from the gathered words."""
    start, end = bounds[rank]
    words = shard_winner(
        shard_of(logits, bounds[rank]), valid_width=end - start, vocab_start=start
    )
    gathered = gather_words(words, len(bounds))
    if rewrite_zeros:
        gathered = rewrite_zero_words(gathered)
    return Selection(
        *merge_shard_winners(gathered, rows=logits.shape[0], vocab_size=bounds[-1][1])
    )


def as_bits(selection: Selection) -> Dict[str, np.ndarray]:
    """Ids int64, logits and log-sum-exp as int32 bits: NaN and -0.0 stay apart."""
    return {
        "token_ids": selection.token_ids.numpy(),
        "logits": selection.logits.view(torch.int32).numpy(),
        "logsumexp": selection.logsumexp.view(torch.int32).numpy(),
    }


def from_bits(bits: Dict[str, np.ndarray]) -> Selection:
    return Selection(
        torch.from_numpy(bits["token_ids"]),
        torch.from_numpy(bits["logits"]).view(torch.float32),
        torch.from_numpy(bits["logsumexp"]).view(torch.float32),
    )


def random_rows(
    rank: int, world_size: int, rows: int, dtype: str, bounds: Bounds
) -> Dict[str, np.ndarray]:
    logits = random_logits(rows, bounds[-1][1], dtype)
    return as_bits(select_on_rank(logits, rank, bounds))


def special_rows(
    rank: int, world_size: int, logits: np.ndarray, bounds: Bounds, rewrite_zeros: bool
) -> Dict[str, np.ndarray]:
    return as_bits(
        select_on_rank(torch.from_numpy(logits), rank, bounds, rewrite_zeros)
    )


def row_counts(
    rank: int, world_size: int, counts: List[int], bounds: Bounds
) -> List[Dict[str, np.ndarray]]:
    """Batches of other sizes in turn, through the same group."""
    return [
        as_bits(
            select_on_rank(
                random_logits(rows, bounds[-1][1], "float32", seed=turn), rank, bounds
            )
        )
        for turn, rows in enumerate(counts)
    ]


def delayed_rounds(
    rank: int, world_size: int, rounds: int, delay_s: float, bounds: Bounds
) -> Tuple[int, int]:
    """Rounds run and rounds wrong; each has another winner, one rank lags behind."""
    vocab, rows, wrong = bounds[-1][1], 4, 0
    for turn in range(rounds):
        if rank == turn // 10 % world_size and turn % 10 == 0:
            time.sleep(delay_s)
        winner = torch.arange(rows) * 31 + turn * 17
        logits = torch.zeros(rows, vocab)
        logits[torch.arange(rows), winner % vocab] = turn + 1.0
        selection = select_on_rank(logits, rank, bounds)
        right = (selection.token_ids == winner % vocab).all()
        right = right and (selection.logits == turn + 1.0).all()
        wrong += not right
    return rounds, wrong
