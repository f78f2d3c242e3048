"""What a rank measures: dense and packed selection of draft tokens, in turn."""

import time
from typing import Callable, Dict, List, NamedTuple

import torch
import torch.distributed as dist

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.distributed.device_communicators.vocab_gather import (
    make_vocab_gather,
)
from sglang.srt.distributed.parallel_state import (
    init_distributed_environment,
    initialize_model_parallel,
)
from sglang.srt.runtime_context import get_parallel
from sglang.test.kits.shard_winner_kit import peak_cpu_bytes
from sglang.test.test_utils import publish_build_topology

HEAD_PADDING = 64
"""SGLang pads a vocabulary to a multiple of this before it splits the head."""


class Case(NamedTuple):
    """One row of the table."""

    rows: int
    vocab: int
    dtype: str


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
    init_distributed_environment(
        world_size=world_size, rank=rank, local_rank=rank, backend="gloo"
    )
    publish_build_topology(
        tp_size=world_size,
        ep_size=1,
        pp_size=1,
        device="cpu",
        world_rank=rank,
        disable_custom_all_reduce=True,
    )
    initialize_model_parallel(backend="gloo")
    group = get_parallel().tp_group
    with torch.inference_mode():
        return [_measure_case(rank, group, case, limits) for case in cases]


def _measure_case(rank: int, group, case: Case, limits: Limits) -> Dict:
    steps = _steps(rank, group, case)
    if not torch.equal(*(step() for step in steps)):
        raise RuntimeError(f"dense and packed token ids differ: {case}")
    started = time.perf_counter()
    while _of_rank_0([time.perf_counter() - started < limits.warm_up_seconds])[0]:
        trial = sum(_timed_pair(steps, 1, swap=False))
    block = _clamp(limits.block_seconds / trial, 1, limits.max_block)
    pairs = _clamp(limits.seconds / trial / block, limits.min_pairs, limits.max_pairs)
    pairs, block = _of_rank_0([pairs, block])
    seconds = [_timed_pair(steps, block, swap=pair % 2 == 1) for pair in range(pairs)]
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
    padded = -(-case.vocab // HEAD_PADDING) * HEAD_PADDING
    width = padded // group.world_size
    start = rank * width
    valid_width = max(0, min(width, case.vocab - start))
    generator = torch.Generator().manual_seed(rank)
    logits = torch.randn(case.rows, width, generator=generator)
    logits = logits.to(getattr(torch, case.dtype))
    # As in VocabParallelDraft.
    gather = make_vocab_gather(group, local_width=4, symm_rows=0)

    def dense() -> torch.Tensor:
        full = group.all_gather(logits, dim=-1)[:, : case.vocab].float()
        return full.argmax(dim=-1)

    def packed() -> torch.Tensor:
        words = shard_winner(logits, valid_width=valid_width, vocab_start=start)
        gathered = gather.gather_stacked(words)
        return merge_shard_winners(gathered, rows=case.rows, vocab_size=case.vocab)[0]

    return [dense, packed]


def _timed_pair(steps: List[Callable], block: int, swap: bool) -> List[float]:
    """Seconds of a dense and of a packed step; ``swap`` runs packed first."""
    seconds = [0.0, 0.0]
    for arm in (1, 0) if swap else (0, 1):
        dist.barrier()
        started = time.perf_counter()
        for _ in range(block):
            steps[arm]()
        seconds[arm] = (time.perf_counter() - started) / block
    return seconds


def _clamp(value: float, low: int, high: int) -> int:
    return max(low, min(int(value), high))


def _of_rank_0(values: List[int]) -> List[int]:
    """The same numbers on every rank: all have to run as many steps."""
    box = torch.tensor(values)
    dist.broadcast(box, src=0)
    return box.tolist()
