"""DSpark greedy blocks on a rank: SGLang's dense Markov steps beside the packed ones."""

from typing import Any, Dict, List

import torch

from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.draft_worker_common import make_draft_sampler_capture_hook
from sglang.srt.speculative.dspark_draft_probability import (
    DraftProbability,
    connect_draft_probability,
)
from sglang.srt.speculative.spec_tp_sync import SpecTpSync
from sglang.srt.speculative.vocab_parallel_markov import PackedMarkov
from sglang.test.kits.block_draft_rank_kit import (
    CountedGroup,
    Replay,
    head_shard,
    numbers,
    shard_winners,
)
from sglang.test.kits.dspark_draft_kit import (
    GAMMA,
    HIDDEN,
    Block,
    DraftModel,
    draft_model_of,
    environment,
    markov_head_of,
)


def blocks(
    rank: int, world_size: int, cases: List[Dict[str, Any]]
) -> List[Dict[str, Any]]:
    """Every case's block, drafted densely, packed, and packed at a graph's end."""
    group = CountedGroup(rank, world_size)
    with get_parallel().override(tp_group=group):
        return [_one(rank, world_size, group, **case) for case in cases]


def _one(
    rank,
    world_size,
    group,
    kind,
    bs,
    vocab=1003,
    markov_vocab=None,
    head_dtype="float32",
    dtype="float32",
    whole=False,
    seed=0,
    sync="all",
    special=None,
):
    weight = numbers((vocab, HIDDEN), getattr(torch, head_dtype), seed, whole)
    hidden = numbers((bs, GAMMA, HIDDEN), getattr(torch, head_dtype), seed + 1, whole)
    if special is not None:
        hidden = hidden.abs() + 1
        for column, value in special.items():
            weight[column] = value
    lm_head = head_shard(weight, rank, world_size)
    markov_vocab = markov_vocab or vocab
    model = draft_model_of(
        kind, lm_head, markov_vocab, getattr(torch, dtype), seed + 2, whole
    )
    with environment(SGLANG_SPEC_TP_SYNC=sync):
        tp_sync = SpecTpSync(group)
    block = Block(group, hidden, seed)
    dense = _dense(model, block, tp_sync)
    model.markov_head.vocab_parallel_draft = PackedMarkov(
        shard_winners(lm_head, group, min(vocab, markov_vocab))
    )
    packed = _packed(model, block, tp_sync)
    counts = dense.pop("counts") | packed.pop("counts")
    return dense | packed | {"counts": counts}


def _dense(model: DraftModel, block: Block, tp_sync: SpecTpSync) -> Dict[str, Any]:
    """The block by SGLang's steps; again with the probability, which stays connected."""
    block.group.taken()
    tokens = block.eager(model, tp_sync).numpy()
    counts = {"dense": block.group.taken()}
    step_logits = _step_logits(model, block, tokens)
    model.confidence_head = DraftProbability(greedy_draft=True)
    connect_draft_probability(model)
    recorded = block.eager(model, tp_sync)
    return {
        "dense": tokens,
        "step_logits": step_logits,
        "dense_recorded": recorded.numpy(),
        "dense_probability": block.confidence(model, recorded).numpy(),
        "counts": counts,
    }


def _packed(model: DraftModel, block: Block, tp_sync: SpecTpSync) -> Dict[str, Any]:
    """The block by packed steps, eager and at the end of a graph."""
    head, hidden, group = model.markov_head, block.hidden, block.group
    group.taken()
    tokens = block.eager(model, tp_sync)
    counts = {"packed": group.taken()}
    probability = block.confidence(model, tokens)
    bias, _ = head.step_bias(
        block.anchors, hidden_states=hidden[:, 0], state=head.init_state(hidden)
    )
    sampler = block.sampler(model, tp_sync, block.bs)
    sampler(hidden.flatten(0, 1), block.anchors.repeat_interleave(GAMMA))
    counts["packed_graph"] = group.taken()
    return {
        "packed": tokens.numpy(),
        "probability": probability.numpy(),
        "bias_columns": bias.shape[1],
        "shard_columns": head.vocab_parallel_draft.winners.width,
        "packed_graph": sampler.out.view(block.bs, GAMMA).numpy(),
        "graph_probability": sampler.confidence_out.numpy(),
        "counts": counts,
    }


def _step_logits(model: DraftModel, block: Block, tokens: Any) -> Any:
    """The logits that the dense steps pick from, FP32 ``[bs, gamma, vocab]``."""
    head = model.markov_head
    shard, head.vocab_shard = head.vocab_shard, None
    local, _ = model.compute_base_logits(block.hidden.flatten(0, 1))
    head.vocab_shard = shard
    base = local
    if local.shape[1] < head.vocab_size:
        base = block.group.all_gather(local, dim=-1)
    base = base[:, : model.lm_head.org_vocab_size].view(block.bs, GAMMA, -1)
    steps, state = [], head.init_state(block.hidden)
    previous = block.anchors
    for step in range(GAMMA):
        bias, state = head.step_bias(
            previous, hidden_states=block.hidden[:, step], state=state
        )
        if bias.shape[1] < base.shape[2] and shard is not None:
            width = model.lm_head.num_embeddings_per_partition
            bias = torch.nn.functional.pad(bias, (0, width - bias.shape[1]))
            bias = block.group.all_gather(bias, dim=-1)[:, : base.shape[2]]
        logits = base[:, step, : bias.shape[1]].float() + bias.float()
        steps.append(logits.to(head.step_logits_dtype(base.dtype)).float())
        previous = torch.from_numpy(tokens[:, step])
    return torch.stack(steps, dim=1).numpy()


def replays(
    rank: int, world_size: int, batches: List[int], max_bs: int, kind: str
) -> Dict[str, Any]:
    """Batches of other sizes in turn through one captured tail, beside eager ones."""
    group = CountedGroup(rank, world_size)
    vocab = 1003
    lm_head = head_shard(
        numbers((vocab, HIDDEN), torch.float32, 5, False), rank, world_size
    )
    head = markov_head_of(kind, vocab, torch.float32, 6, False)
    head.vocab_parallel_draft = PackedMarkov(shard_winners(lm_head, group, vocab))
    model = DraftModel(head, lm_head, v4=False)
    model.confidence_head = DraftProbability(greedy_draft=True)
    connect_draft_probability(model)
    tp_sync = SpecTpSync(group)
    rounds = []
    with get_parallel().override(tp_group=group):
        warm = Block(group, torch.zeros(max_bs, GAMMA, HIDDEN), 0)
        sampler = warm.sampler(model, tp_sync, max_bs)
        rows = torch.full((max_bs * GAMMA, HIDDEN), 1e30)
        ids = torch.zeros(max_bs * GAMMA, dtype=torch.int64)
        replay = Replay(make_draft_sampler_capture_hook(sampler), rows, ids)
        replay(warm.hidden.flatten(0, 1), ids)
        place = sampler.out.data_ptr(), sampler.confidence_out.data_ptr()
        for turn, bs in enumerate(batches):
            hidden = numbers((bs, GAMMA, HIDDEN), torch.float32, 300 + turn, False)
            block = Block(group, hidden, turn)
            # A padding row may hold anything.
            rows[bs * GAMMA :] = (float("nan"), 1e30, -1e30)[turn % 3]
            replay(hidden.flatten(0, 1), block.anchors.repeat_interleave(GAMMA))
            tokens = block.eager(model, tp_sync)
            rounds.append(
                {
                    "graph": sampler.out.view(-1, GAMMA)[:bs].clone().numpy(),
                    "probability": sampler.confidence_out[:bs].clone().numpy(),
                    "eager": tokens.numpy(),
                    "eager_probability": block.confidence(model, tokens).numpy(),
                }
            )
    kept = (sampler.out.data_ptr(), sampler.confidence_out.data_ptr()) == place
    return {"rounds": rounds, "kept": kept}
