"""What a rank measures: dense and packed selection of draft tokens, in turn."""

import time
from typing import Callable, Dict, List, NamedTuple, Tuple

import torch
import torch.distributed as dist
from selection_steps import (
    Case,
    dense_step,
    of_rank_0,
    packed_step,
    random_shard,
)

from sglang.test.kits.shard_winner_kit import peak_cpu_bytes
from sglang.test.kits.tp_group_kit import init_group, transports


class Limits(NamedTuple):
    """How long a case is measured: pairs of a block of dense and one of packed steps.

    Steps of a block run back to back, as in a server: the collective alone keeps the
    ranks together, and the start of the processes' time slices averages out.
    """

    warm_up_seconds: float
    seconds: float
    block_seconds: float
    min_pairs: int
    max_pairs: int
    max_block: int


def measure(
    rank: int, world_size: int, cases: List[Case], limits: Limits
) -> List[Dict]:
    """Per case the seconds of every pair, and the peak bytes of either step."""
    group = init_group(rank, world_size, rank, "cpu")
    with torch.inference_mode():
        return [_measure_case(rank, group, case, limits) for case in cases]


def _measure_case(rank: int, group, case: Case, limits: Limits) -> Dict:
    steps = _steps(rank, group, case)
    if not torch.equal(*(step() for step in steps)):
        raise RuntimeError(f"dense and packed token ids differ: {case}")
    block, seconds = timed_pairs(steps, limits)
    dense_peak, packed_peak = (peak_cpu_bytes(step) for step in steps)
    return {
        "block": block,
        "dense_s": [dense for dense, _ in seconds],
        "packed_s": [packed for _, packed in seconds],
        "dense_peak_bytes": dense_peak,
        "packed_peak_bytes": packed_peak,
    }


def _steps(rank: int, group, case: Case) -> List[Callable[[], torch.Tensor]]:
    """The dense and the packed step on this rank's logits; both return token ids."""
    shard = random_shard(rank, group.world_size, case, "cpu")
    (gather,) = transports(group, "cpu").values()
    return [
        dense_step(group, shard, case.vocab),
        packed_step(gather, shard, case.vocab),
    ]


def timed_pairs(
    steps: List[Callable], limits: Limits, finish: Callable = lambda: None
) -> Tuple[int, List[List[float]]]:
    """Steps of a block, and the seconds of a step of either arm in every pair.

    ``finish`` waits for work that a step has only started.
    """
    started = time.perf_counter()
    while of_rank_0([time.perf_counter() - started < limits.warm_up_seconds])[0]:
        trial = sum(timed_pair(steps, 1, False, finish))
    block = clamp(limits.block_seconds / trial, 1, limits.max_block)
    pairs = clamp(limits.seconds / trial / block, limits.min_pairs, limits.max_pairs)
    pairs, block = of_rank_0([pairs, block])
    swaps = (pair % 2 == 1 for pair in range(pairs))
    return block, [timed_pair(steps, block, swap, finish) for swap in swaps]


def timed_pair(
    steps: List[Callable], block: int, swap: bool, finish: Callable
) -> List[float]:
    """Seconds of a dense and of a packed step; ``swap`` runs packed first."""
    seconds = [0.0, 0.0]
    for arm in (1, 0) if swap else (0, 1):
        dist.barrier()
        started = time.perf_counter()
        for _ in range(block):
            steps[arm]()
        finish()
        seconds[arm] = (time.perf_counter() - started) / block
    return seconds


def clamp(value: float, low: int, high: int) -> int:
    return max(low, min(int(value), high))
