"""What a rank measures for bench_workspace.py: ``shard_winner`` with other tiles."""

import time
from typing import Dict, List
from unittest import mock

import torch
import torch.distributed as dist

from sglang.kernels.ops.speculative import shard_winner_torch as module
from sglang.kernels.ops.speculative.shard_winner import shard_winner


def measure(
    rank: int, world_size: int, rows: int, width: int, settings: List[Dict], rounds: int
) -> List[List[float]]:
    """Seconds of every round of every setting, the settings in turn."""
    generator = torch.Generator().manual_seed(rank)
    logits = torch.randn(rows, width, generator=generator).bfloat16()
    seconds = [[] for _ in settings]
    with torch.inference_mode():
        for _ in range(rounds):
            for setting, times in zip(settings, seconds):
                with mock.patch.multiple(module, **setting):
                    dist.barrier()
                    started = time.perf_counter()
                    shard_winner(logits, valid_width=width, vocab_start=0, impl="torch")
                    times.append(time.perf_counter() - started)
    return seconds
