"""What a rank measures for bench_few_rows.py: two implementations in turn."""

import time
from typing import Dict, List, Optional
from unittest import mock

import torch
import torch.distributed as dist

from sglang.kernels.ops.speculative import shard_winner_few_rows as module
from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)

IMPLEMENTATIONS: Dict[str, Optional[str]] = {"few rows": None, "any rows": "torch"}


def measure(
    rank: int, world_size: int, rows: int, width: int, rounds: int, block: int
) -> Dict[str, List[float]]:
    """Seconds of a reduction and a merge of its words, every round, by name."""
    generator = torch.Generator().manual_seed(rank)
    logits = torch.randn(rows, width, generator=generator).bfloat16()
    seconds: Dict[str, List[float]] = {name: [] for name in IMPLEMENTATIONS}
    with torch.inference_mode(), mock.patch.object(module, "MOST_ROWS", rows):
        for _ in range(rounds):
            for name, impl in IMPLEMENTATIONS.items():
                dist.barrier()
                started = time.perf_counter()
                for _ in range(block):
                    words = shard_winner(
                        logits, valid_width=width, vocab_start=0, impl=impl
                    )
                    gathered = words.repeat(world_size, 1)
                    merge_shard_winners(gathered, rows=rows, impl=impl)
                seconds[name].append((time.perf_counter() - started) / block)
    return seconds
