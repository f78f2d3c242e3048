"""DSpark's confidence on a rank, and what SGLang's verify planner decides by it."""

from typing import Any, Dict, List

import torch

from sglang.srt.models.dspark import DSparkConfidenceHead
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.dspark_draft_probability import (
    DraftProbability,
    connect_draft_probability,
)
from sglang.srt.speculative.vocab_parallel_markov import PackedMarkov
from sglang.test.kits.block_draft_rank_kit import (
    CountedGroup,
    head_shard,
    numbers,
    shard_winners,
)
from sglang.test.kits.dspark_draft_kit import (
    GAMMA,
    HIDDEN,
    RANK,
    draft_model_of,
    environment,
)
from sglang.test.kits.dspark_verify_kit import VOCAB, Steps


def confidences(
    rank: int, world_size: int, cases: List[Dict[str, Any]]
) -> List[Dict[str, Any]]:
    """Confidence and decisions of every case's blocks, by path and proposal."""
    group = CountedGroup(rank, world_size)
    with get_parallel().override(tp_group=group):
        return [_one(rank, world_size, group, **case) for case in cases]


def _one(
    rank,
    world_size,
    group,
    kind,
    source,
    bs,
    rounds=4,
    dtype="float32",
    whole=True,
    temperatures=None,
    calibration=None,
    mode="compact",
    seed=0,
):
    dtype, greedy = getattr(torch, dtype), temperatures is None
    weight = numbers((VOCAB, HIDDEN), dtype, seed, whole) / 4
    lm_head = head_shard(weight, rank, world_size)
    hidden = [
        numbers((bs, GAMMA, HIDDEN), dtype, seed + 10 + turn, whole)
        for turn in range(rounds)
    ]
    result = {"temperatures": temperatures}
    with environment(SGLANG_RAGGED_VERIFY_MODE=mode):
        model = draft_model_of(kind, lm_head, VOCAB, dtype, seed + 2, whole)
        model.confidence_head = confidence_head_of(source, greedy, seed)
        if source == "draft-probability":
            connect_draft_probability(model)
        for path in ("dense", "packed") if greedy else ("dense",):
            if path == "packed":
                winners = shard_winners(lm_head, group, VOCAB)
                model.markov_head.vocab_parallel_draft = PackedMarkov(winners)
            for folded in (False, True):
                steps = Steps(group, model, bs, greedy, calibration)
                result[path, "folded" if folded else "eager"] = [
                    steps.run(block, temperatures, folded) for block in hidden
                ]
    return result


def confidence_head_of(source: str, greedy: bool, seed: int) -> Any:
    if source == "draft-probability":
        return DraftProbability(greedy_draft=greedy)
    head = DSparkConfidenceHead(hidden_size=HIDDEN, markov_rank=RANK)
    for index, parameter in enumerate(head.parameters()):
        parameter.requires_grad_(False)
        shape = tuple(parameter.shape)
        parameter.data = numbers(shape, torch.float32, seed * 7 + index, False)
    return head
