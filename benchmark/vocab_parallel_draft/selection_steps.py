"""The dense and the packed selection of draft tokens, as SGLang's ranks run them.

Benchmarks time these steps; none of them has a copy of its own.
"""

from typing import Any, Callable, List, NamedTuple

import torch
import torch.distributed as dist

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.distributed.device_communicators.vocab_gather import VocabGather

HEAD_PADDING = 64
"""SGLang pads a vocabulary to a multiple of this before it splits the head."""

Step = Callable[[], torch.Tensor]


class Case(NamedTuple):
    """Rows of a step, vocabulary, and the dtype of the head's output."""

    rows: int
    vocab: int
    dtype: str


class Shard(NamedTuple):
    """A rank's logits ``[rows, width]`` and the ids that they stand for."""

    logits: torch.Tensor
    start: int
    valid_width: int


def random_shard(rank: int, world_size: int, case: Case, device: str) -> Shard:
    """The same logits in every run, with one winner: CUDA's argmax has no tie rule."""
    padded = -(-case.vocab // HEAD_PADDING) * HEAD_PADDING
    width = padded // world_size
    start = rank * width
    generator = torch.Generator().manual_seed(rank)
    logits = torch.randn(case.rows, width, generator=generator)
    logits[:, 0] = 16.0 + rank
    logits = logits.to(device, getattr(torch, case.dtype))
    return Shard(logits, start, max(0, min(width, case.vocab - start)))


def dense_step(group: Any, shard: Shard, vocab: int) -> Step:
    """Gather, FP32 copy and argmax: the logits processor's and the worker's work.

    On CUDA the gather is SGLang's multimem kernel where it can be, and the argmax its
    topk=1 kernel; call the step once before a graph is captured.
    """
    if shard.logits.device.type == "cpu":

        def gathered_argmax():
            gathered = group.all_gather(shard.logits, dim=-1)[:, :vocab]
            return gathered.float().argmax(dim=-1)

        return gathered_argmax
    from sglang.kernels.ops.speculative.topk1 import draft_topk1_postprocess
    from sglang.srt.distributed.device_communicators import triton_symm_mem_ag

    rows = shard.logits.shape[0]
    gather = triton_symm_mem_ag.MultimemAllGatherer(
        max_tokens=max(rows, 128), skip_entry_sync=True
    )
    positions = torch.zeros(rows, dtype=torch.int64, device=shard.logits.device)
    tokens = torch.zeros((rows, 2), dtype=torch.int64, device=shard.logits.device)

    def step() -> torch.Tensor:
        logits = gather(shard.logits)[:, :vocab].float()
        return draft_topk1_postprocess(logits, positions, tokens, 1)[1].flatten()

    return step


def packed_step(gather: VocabGather, shard: Shard, vocab: int) -> Step:
    """Reduce, exchange the words and merge, with what the merge writes besides."""
    rows, device = shard.logits.shape[0], shard.logits.device
    positions = torch.zeros(rows, dtype=torch.int64, device=device)
    tokens = torch.zeros((rows, 2), dtype=torch.int64, device=device)
    # The CPU's draft loop has no token buffer.
    written = {} if device.type == "cpu" else dict(draft_tokens=tokens, column=1)

    def step() -> torch.Tensor:
        words = shard_winner(
            shard.logits, valid_width=shard.valid_width, vocab_start=shard.start
        )
        gathered = gather.gather_stacked(words)
        return merge_shard_winners(
            gathered, rows=rows, vocab_size=vocab, positions=positions, **written
        )[0]

    return step


def of_rank_0(values: List[int]) -> List[int]:
    """The same numbers on every rank: all have to run as many steps."""
    box = [values]
    dist.broadcast_object_list(box, src=0)
    return box[0]
