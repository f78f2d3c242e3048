"""What a rank does in the tests of the packed words over SGLang's own groups."""

import time
from typing import Any, Dict, List, NamedTuple

import numpy as np
import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    padded_rows,
    shard_winner,
)
from sglang.test.kits.shard_winner_kit import Bounds, Selection, shard_of
from sglang.test.kits.shard_winner_rank_kit import as_bits, random_logits
from sglang.test.kits.tp_group_kit import init_group, transports

PAST_SLOT = -1
"""Of ``Plan.rows``: so many rows that the words do not fit a slot of the push plane."""


class Plan(NamedTuple):
    """Batches in turn over one group; ``late_s``: every tenth, one rank is late."""

    device: str
    rows: List[int]
    bounds: Bounds
    dtype: str = "bfloat16"
    late_s: float = 0.0


def batches(rank: int, world_size: int, plan: Plan) -> Dict[str, List[Dict[str, Any]]]:
    """Per transport, the selection of every batch as this rank computes it."""
    group = init_group(rank, world_size, rank, plan.device)
    return {
        name: [
            _batch(rank, world_size, plan, gather, turn, rows)
            for turn, rows in enumerate(plan.rows)
        ]
        for name, gather in transports(group, plan.device).items()
    }


def logits_of(plan: Plan, turn: int, rows: int) -> torch.Tensor:
    """A batch's ``[rows, vocab]`` logits. Row 0 is won by id 0 with a logit of +0.0: in
    its words all bits are zero but those of the log-sum-exp."""
    logits = random_logits(rows, plan.bounds[-1][1], plan.dtype, seed=turn)
    if rows:
        logits[0] = -1.0
        logits[0, 0] = 0.0
    return logits


def rows_of(rows: int, slot_bytes: int = 0) -> int:
    """``rows``, or enough of them that the words are larger than a slot."""
    return slot_bytes // 12 + 4 if rows == PAST_SLOT else rows


def replayed(
    rank: int, world_size: int, plan: Plan
) -> Dict[str, List[Dict[str, np.ndarray]]]:
    """As ``batches``, every batch size captured in a CUDA graph and replayed."""
    group = init_group(rank, world_size, rank, plan.device)
    found = {}
    for name, gather in transports(group, plan.device).items():
        found[name] = []
        for turn, rows in enumerate(plan.rows):
            logits = torch.zeros_like(_shard(rank, plan, turn, rows))

            def step():
                return _select(gather, logits, rank, plan)

            step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with group.graph_capture() as context:
                with torch.cuda.graph(graph, stream=context.stream):
                    results = step()
            logits.copy_(_shard(rank, plan, turn, rows))
            graph.replay()
            torch.cuda.synchronize()
            found[name].append(as_bits(Selection(*(x.cpu() for x in results))))
    return found


def _batch(
    rank: int, world_size: int, plan: Plan, gather: Any, turn: int, rows: int
) -> Dict[str, Any]:
    rows = rows_of(rows, getattr(gather, "slot_bytes", 4096))
    logits = _shard(rank, plan, turn, rows)
    if plan.late_s and turn % 10 == 0 and rank == turn // 10 % world_size:
        time.sleep(plan.late_s)
    selection = _select(gather, logits, rank, plan)
    bits = as_bits(Selection(*(field.cpu() for field in selection)))
    return {"rows": rows, "pushes": _pushes(gather, rows), **bits}


def _pushes(gather: Any, rows: int) -> bool:
    """Whether the words of ``rows`` rows fit the gather's slot, if it has any."""
    return 12 * padded_rows(rows) <= getattr(gather, "slot_bytes", 0)


def _shard(rank: int, plan: Plan, turn: int, rows: int) -> torch.Tensor:
    return shard_of(logits_of(plan, turn, rows), plan.bounds[rank]).to(plan.device)


def _select(gather: Any, logits: torch.Tensor, rank: int, plan: Plan) -> Selection:
    start, end = plan.bounds[rank]
    words = shard_winner(logits, valid_width=end - start, vocab_start=start)
    # As in the packed path: no rows, no collective.
    gathered = gather.gather_stacked(words) if len(logits) else words
    return Selection(
        *merge_shard_winners(gathered, rows=len(logits), vocab_size=plan.bounds[-1][1])
    )
