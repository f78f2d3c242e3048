"""DFlash blocks on a rank: the dense units of SGLang beside the packed ones."""

from types import SimpleNamespace
from typing import Any, Dict, List, Optional
from unittest.mock import patch

import torch

from sglang.srt.speculative import dflash_worker_v2
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.draft_worker_common import make_draft_sampler_capture_hook
from sglang.srt.speculative.vocab_parallel_dflash import PackedDFlash
from sglang.test.kits.block_draft_rank_kit import (
    CountedGroup,
    Replay,
    head_shard,
    numbers,
    parallel_of,
    shard_winners,
)

HIDDEN = 16
BLOCK = 5
_WORKER = "sglang.srt.speculative.dflash_worker_v2"


def dflash_worker(packed: Optional[PackedDFlash], head: Any) -> DFlashWorkerV2:
    """A worker with what its samplers read."""
    worker = DFlashWorkerV2.__new__(DFlashWorkerV2)
    model = SimpleNamespace(lm_head=head)
    worker._target_worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
    worker.vocab_parallel_draft = packed
    worker.block_size = BLOCK
    worker.selector = worker.lilicorr = None
    worker._is_domino = False
    worker._target_tp_rank = 1
    for name in ("local_max", "local_arg", "gathered_max", "gathered_ids", "best_rank"):
        setattr(worker, f"_draft_greedy_{name}_buf", None)
    worker._draft_greedy_rank_index_buf = worker._draft_greedy_selected_ids_buf = None
    for name in ("gather", "local", "index"):
        setattr(worker, f"_draft_greedy_{name}_cap", 0)
    return worker


def build_sampler(worker: DFlashWorkerV2, group: Any, max_bs: int) -> Any:
    """The worker's own choice of a sampler for its draft graph."""
    decode = SimpleNamespace(decode=SimpleNamespace(bs=[max_bs]))
    execution = SimpleNamespace(graph=SimpleNamespace(cuda_graph_config=decode))
    with (
        parallel_of(_WORKER, group),
        patch.object(dflash_worker_v2, "get_exec", lambda: execution),
    ):
        return worker._maybe_build_draft_sampler()


def eager(worker: DFlashWorkerV2, group: Any, hidden_states: torch.Tensor, head: Any):
    with parallel_of(_WORKER, group):
        return worker._greedy_sample_from_vocab_parallel_head(
            hidden_states=hidden_states, lm_head=head
        )


def blocks(
    rank: int, world_size: int, cases: List[Dict[str, Any]]
) -> List[Dict[str, Any]]:
    """Every case's blocks, drafted densely and packed, in the graph and eagerly."""
    group = CountedGroup(rank, world_size)
    return [_one(rank, world_size, group, **case) for case in cases]


def _one(rank, world_size, group, vocab, bs, dtype, whole, seed, special=None):
    dtype = getattr(torch, dtype)
    weight = numbers((vocab, HIDDEN), dtype, seed, whole)
    hidden = numbers((bs * BLOCK, HIDDEN), dtype, seed + 1, whole)
    if special is not None:
        hidden = hidden.abs() + 1
        for column, value in special.items():
            weight[column] = value
    head = head_shard(weight, rank, world_size)
    packed = PackedDFlash(head, shard_winners(head, group, vocab))
    drafted = hidden.view(bs, BLOCK, -1)[:, 1:].reshape(-1, HIDDEN)
    result, counts = {}, {}
    for name, draft in (("dense", None), ("packed", packed)):
        worker = dflash_worker(draft, head)
        if draft is not None or head.shard_indices.num_org_elements:
            result[f"{name}_kind"] = type(build_sampler(worker, group, bs)).__name__
        group.taken()
        result[f"{name}_eager"] = eager(worker, group, drafted, head).numpy()
        counts[f"{name}_eager"] = group.taken()
    if _every_rank_holds_tokens(vocab, head, world_size):
        sampler = build_sampler(dflash_worker(None, head), group, bs)
        sampler(hidden)
        result["dense_graph"] = sampler.out.numpy()
        counts["dense_graph"] = group.taken()
    sampler = build_sampler(dflash_worker(packed, head), group, bs)
    sampler(hidden)
    result["packed_graph"] = sampler.out.numpy()
    counts["packed_graph"] = group.taken()
    result["probability"] = packed.select(drafted).probability().numpy()
    local = torch.matmul(drafted, head.weight.T)
    result["logits"] = group.all_gather(local, dim=-1)[:, :vocab].float().numpy()
    result["counts"] = counts
    group.taken()
    return result


def _every_rank_holds_tokens(vocab: int, head: Any, world_size: int) -> bool:
    return vocab > head.num_embeddings_per_partition * (world_size - 1)


def replays(
    rank: int, world_size: int, batches: List[int], max_bs: int, vocab: int
) -> Dict[str, Any]:
    """Batches of other sizes in turn through one captured tail, beside eager ones."""
    group = CountedGroup(rank, world_size)
    head = head_shard(
        numbers((vocab, HIDDEN), torch.float32, 7, False), rank, world_size
    )
    packed = PackedDFlash(head, shard_winners(head, group, vocab))
    worker = dflash_worker(packed, head)
    sampler = build_sampler(worker, group, max_bs)
    place = sampler.out.data_ptr()
    replay = Replay(
        make_draft_sampler_capture_hook(sampler),
        torch.full((max_bs * BLOCK, HIDDEN), float("nan")),
        torch.zeros(max_bs * BLOCK, dtype=torch.int64),
    )
    rounds = []
    for turn, bs in enumerate(batches):
        hidden = numbers((bs * BLOCK, HIDDEN), torch.float32, 100 + turn, False)
        # A padding row may hold anything.
        replay.hidden_states[bs * BLOCK :] = (float("nan"), 1e30, -1e30)[turn % 3]
        replay(hidden, torch.zeros(bs * BLOCK, dtype=torch.int64))
        rows = bs * (BLOCK - 1)
        drafted = hidden.view(bs, BLOCK, -1)[:, 1:].reshape(-1, HIDDEN)
        rounds.append(
            {
                "graph": sampler.out[:rows].clone().numpy(),
                "eager": eager(worker, group, drafted, head).numpy(),
            }
        )
    return {"rounds": rounds, "kept": sampler.out.data_ptr() == place}


def changed_head(rank: int, world_size: int) -> str:
    """What drafting with another head than the installed one says."""
    group = CountedGroup(rank, world_size)
    weight = numbers((130, HIDDEN), torch.float32, 1, False)
    head, other = (head_shard(weight, rank, world_size) for _ in range(2))
    packed = PackedDFlash(head, shard_winners(head, group, 130))
    try:
        eager(dflash_worker(packed, head), group, weight[:2], other)
    except RuntimeError as error:
        return str(error)
    return "drafted"
