"""Domino blocks on a rank: SGLang's rollout with the dense exchanges and the packed one."""

from types import SimpleNamespace
from typing import Any, Dict, List, Optional

import torch

from sglang.srt.speculative.domino_utils import domino_greedy_rollout
from sglang.srt.speculative.draft_worker_common import make_draft_sampler_capture_hook
from sglang.srt.speculative.vocab_parallel_domino import PackedDomino
from sglang.test.kits.block_draft_rank_kit import (
    CountedGroup,
    Replay,
    head_shard,
    numbers,
    shard_winners,
)
from sglang.test.kits.dflash_rank_kit import build_sampler, dflash_worker

HIDDEN, STATE, EMBED = 16, 12, 8
BLOCK = 5


class DominoModel:
    """Target embedding, head and projector of a small Domino draft."""

    def __init__(self, vocab: int, dtype: torch.dtype, seed: int, whole: bool):
        self.vocab = vocab
        self.embedding = torch.nn.Embedding(vocab, HIDDEN, dtype=dtype)
        self.gru = torch.nn.GRU(
            HIDDEN, STATE, bias=False, batch_first=True, dtype=dtype
        )
        self.projector = torch.nn.Sequential(
            torch.nn.Linear(HIDDEN + STATE, EMBED, bias=False, dtype=dtype),
            torch.nn.SiLU(),
            torch.nn.Linear(EMBED, vocab, bias=False, dtype=dtype),
        )
        parts = (self.embedding, self.gru, self.projector)
        parameters = [p for part in parts for p in part.parameters()]
        for index, parameter in enumerate(parameters):
            parameter.requires_grad_(False)
            parameter.copy_(
                numbers(tuple(parameter.shape), dtype, seed * 100 + index, False)
            )
        self.weight = numbers((vocab, HIDDEN), dtype, seed + 50, whole)

    def rollout(self, hidden, anchors, head=None, group=None, **options):
        shard = head.shard_indices if head is not None else None
        split = {}
        if shard is not None:
            split = dict(
                lm_head_org_vocab_start=shard.org_vocab_start_index,
                lm_head_num_org=shard.num_org_elements,
                lm_head_num_org_padded=shard.num_org_elements_padded,
            )
        return domino_greedy_rollout(
            draft_hidden=hidden,
            bonus_tokens=anchors,
            target_embedding=self.embedding,
            lm_head_weight=self.weight if head is None else head.weight,
            prefix_gru=self.gru,
            embed_proj=self.projector,
            vocab_size=self.vocab,
            tp_group=group,
            **split,
            **options,
        ).numpy()


def chains(
    rank: int, world_size: int, cases: List[Dict[str, Any]]
) -> List[Dict[str, Any]]:
    """Every case's blocks with each of the dense exchanges and with the packed one."""
    group = CountedGroup(rank, world_size)
    return [_one(rank, world_size, group, **case) for case in cases]


def _one(
    rank,
    world_size,
    group,
    vocab,
    bs,
    pool,
    dtype,
    whole,
    seed,
    block=BLOCK,
    shift=True,
):
    dtype = getattr(torch, dtype)
    model = DominoModel(vocab, dtype, seed, whole)
    hidden = numbers((bs, block, HIDDEN), dtype, seed + 1, whole)
    anchors = torch.arange(bs) * 7 % vocab
    head = head_shard(model.weight, rank, world_size)
    packed = PackedDomino(shard_winners(head, group, vocab))
    options = dict(shift_label=shift, candidate_pool_size=pool)
    result, counts = {}, {}
    arms = {
        # In a graph the dense rollout prefers the pool from two rows on.
        "dense_pool": dict(in_cuda_graph=True),
        "dense_gather": dict(in_cuda_graph=False),
        "packed": dict(in_cuda_graph=False, packed=packed),
        "packed_graph": dict(in_cuda_graph=True, packed=packed),
    }
    for name, arm in arms.items():
        group.taken()
        result[name] = model.rollout(hidden, anchors, head, group, **options, **arm)
        counts[name] = group.taken()
    result["alone"] = model.rollout(hidden, anchors, **options, in_cuda_graph=False)
    result["first_probability"] = packed.first.probability().numpy()
    first = torch.nn.functional.linear(hidden[:, 0 if shift else 1], model.weight)
    result["first_logits"] = first.float().numpy()
    result["counts"] = counts
    return result


def replays(
    rank: int, world_size: int, batches: List[int], max_bs: int, vocab: int
) -> Dict[str, Any]:
    """The sampler that the worker builds, replayed, beside the dense rollout."""
    group = CountedGroup(rank, world_size)
    model = DominoModel(vocab, torch.float32, 3, False)
    head = head_shard(model.weight, rank, world_size)
    packed = PackedDomino(shard_winners(head, group, vocab))
    sampler = build_sampler(_worker(packed, model, head), group, max_bs)
    place = sampler.out.data_ptr()
    replay = Replay(
        make_draft_sampler_capture_hook(sampler),
        torch.full((max_bs * BLOCK, HIDDEN), 1e3),
        torch.zeros(max_bs * BLOCK, dtype=torch.int64),
    )
    rounds = []
    for turn, bs in enumerate(batches):
        hidden = numbers((bs, BLOCK, HIDDEN), torch.float32, 200 + turn, False)
        ids = torch.arange(bs * BLOCK) * 11 % vocab
        group.taken()
        replay(hidden.view(-1, HIDDEN), ids)
        drafted = sampler.out[: bs * (BLOCK - 1)].view(bs, -1).clone().numpy()
        exchanges = group.taken()
        dense = model.rollout(
            hidden,
            ids.view(bs, BLOCK)[:, 0],
            head,
            group,
            shift_label=True,
            candidate_pool_size=32,
            in_cuda_graph=False,
        )
        rounds.append({"graph": drafted, "dense": dense, "exchanges": exchanges})
    return {"rounds": rounds, "kept": sampler.out.data_ptr() == place}


def _worker(packed: Optional[PackedDomino], model: DominoModel, head: Any) -> Any:
    worker = dflash_worker(packed, head)
    worker._is_domino = True
    worker.block_size = BLOCK
    worker.domino_candidate_pool_size = 32
    target = SimpleNamespace(lm_head=head, get_input_embeddings=lambda: model.embedding)
    worker._target_worker = SimpleNamespace(model_runner=SimpleNamespace(model=target))
    worker.model_runner = SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=model.vocab)
    )
    worker.draft_model = SimpleNamespace(
        prefix_gru=model.gru, embed_proj=model.projector, shift_label=True
    )
    return worker
