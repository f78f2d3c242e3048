"""DSpark greedy blocks on a rank: SGLang's dense Markov steps beside the packed ones."""

import os
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List
from unittest.mock import patch

import torch

from sglang.srt.models import dspark
from sglang.srt.models.deepseek_v4_dspark import (
    DeepseekV4ForCausalLMDSpark,
    DSparkV4MarkovHead,
)
from sglang.srt.models.dspark import DSparkDraftMixin
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.draft_worker_common import make_draft_sampler_capture_hook
from sglang.srt.speculative.dspark_components.dspark_draft import (
    DraftNoise,
    sample_draft_block,
)
from sglang.srt.speculative.dspark_components.dspark_draft_sampler import (
    DsparkDraftSampler,
)
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

HIDDEN, RANK = 16, 8
GAMMA = 6


class DraftModel:
    """The parts of a DSpark draft that turn hidden states into base logits."""

    sample_from_anchor = True
    confidence_head = None
    compute_confidence = DSparkDraftMixin.compute_confidence
    logits_mup_width_multiplier = None
    _base_logits_gatherer = None

    def __init__(self, markov_head: torch.nn.Module, lm_head: Any, v4: bool):
        self.markov_head = markov_head
        self.lm_head = lm_head
        self._v4 = v4
        self.stages = [SimpleNamespace(norm=lambda hidden: hidden)]
        self._use_fp32_lm_head = False
        self._opt_markov_w2_tp_shard = getattr(
            markov_head, "_opt_markov_w2_tp_shard", False
        )

    def compute_base_logits(self, hidden: torch.Tensor):
        if not self._v4:
            return DSparkDraftMixin.compute_base_logits(self, hidden)
        return DeepseekV4ForCausalLMDSpark._logits_from_x_post_hc(self, hidden), hidden


def markov_head_of(kind: str, vocab: int, dtype: torch.dtype, seed: int, whole: bool):
    sizes = dict(vocab_size=vocab, markov_rank=RANK)
    if kind == "vanilla":
        head = dspark.VanillaMarkov(**sizes)
    elif kind == "nemotron":
        head = dspark.Nemotron35VanillaMarkov(**sizes, quant_config=None, prefix="")
    elif kind == "gated":
        head = dspark.GatedMarkovHead(**sizes, hidden_size=HIDDEN)
    elif kind == "rnn":
        head = dspark.RNNHead(**sizes, hidden_size=HIDDEN)
    else:
        head = DSparkV4MarkovHead(**sizes)
    for index, parameter in enumerate(head.parameters()):
        parameter.requires_grad_(False)
        values = numbers(tuple(parameter.shape), dtype, seed * 100 + index, whole)
        parameter.data = values.to(parameter.dtype if kind == "v4" else dtype)
    return head


@contextmanager
def environment(**values: str) -> Iterator[None]:
    with patch.dict(os.environ, values):
        yield


def blocks(
    rank: int, world_size: int, cases: List[Dict[str, Any]]
) -> List[Dict[str, Any]]:
    """Every case's block, drafted densely, packed, and packed at a graph's end."""
    group = CountedGroup(rank, world_size)
    with get_parallel().override(tp_group=group):
        return [_one(rank, world_size, group, **case) for case in cases]


class Block:
    """Inputs of a block, and the ways to draft it."""

    def __init__(self, group: CountedGroup, hidden: torch.Tensor, seed: int):
        self.group = group
        self.hidden = hidden
        self.bs = hidden.shape[0]
        self.anchors = torch.arange(self.bs) * 13 % 50 + seed % 3
        self.noise = DraftNoise(key=1, offset=torch.zeros(1, dtype=torch.int64))

    def eager(self, model: DraftModel, tp_sync: SpecTpSync) -> torch.Tensor:
        """Its tokens, ``[bs, gamma]``."""
        base, _ = model.compute_base_logits(self.hidden.flatten(0, 1))
        return sample_draft_block(
            base_logits=base.view(self.bs, GAMMA, -1),
            anchor_tokens=self.anchors,
            draft_hidden=self.hidden,
            sampling_info=None,
            markov_head=model.markov_head,
            noise=self.noise,
            device=torch.device("cpu"),
            tp_sync=tp_sync,
            greedy_draft=True,
        ).draft_tokens

    def confidence(self, model: DraftModel, tokens: torch.Tensor) -> torch.Tensor:
        """Of the tokens that were just drafted, ``[bs, gamma]``."""
        confidence, _ = model.compute_confidence(
            anchor_tokens=self.anchors,
            draft_tokens=tokens,
            confidence_features=self.hidden,
        )
        return confidence

    def sampler(self, model: DraftModel, tp_sync: SpecTpSync, max_bs: int):
        return DsparkDraftSampler(
            model=model,
            gamma=GAMMA,
            max_bs=max_bs,
            device=torch.device("cpu"),
            noise=self.noise,
            tp_sync=tp_sync,
            greedy_draft=True,
        )


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
    kind, _, sharded = kind.partition("_")
    with environment(
        SGLANG_DSPARK_OPT_MARKOV_W2_TP_SHARD=str(int(bool(sharded))),
        SGLANG_SPEC_TP_SYNC=sync,
    ):
        head = markov_head_of(
            kind,
            markov_vocab,
            getattr(torch, dtype),
            seed + 2,
            whole,
        )
        if sharded:
            options = {} if kind == "v4" else {"prefer_nvlink": False}
            head.configure_tp_shard(lm_head=lm_head, **options)
        tp_sync = SpecTpSync(group)
    model = DraftModel(head, lm_head, v4=kind == "v4")
    block = Block(group, hidden, seed)
    group.taken()
    result = {"dense": block.eager(model, tp_sync).numpy()}
    counts = {"dense": group.taken()}
    result["step_logits"] = _step_logits(model, block, result["dense"])
    model.confidence_head = DraftProbability(greedy_draft=True)
    connect_draft_probability(model)
    tokens = block.eager(model, tp_sync)
    result["dense_recorded"] = tokens.numpy()
    result["dense_probability"] = block.confidence(model, tokens).numpy()
    group.taken()
    head.vocab_parallel_draft = PackedMarkov(
        shard_winners(lm_head, group, min(vocab, markov_vocab))
    )
    tokens = block.eager(model, tp_sync)
    result["packed"] = tokens.numpy()
    counts["packed"] = group.taken()
    result["probability"] = block.confidence(model, tokens).numpy()
    bias, _ = head.step_bias(
        block.anchors, hidden_states=hidden[:, 0], state=head.init_state(hidden)
    )
    result["bias_columns"] = bias.shape[1]
    result["shard_columns"] = head.vocab_parallel_draft.winners.width
    sampler = block.sampler(model, tp_sync, bs)
    sampler(hidden.flatten(0, 1), block.anchors.repeat_interleave(GAMMA))
    counts["packed_graph"] = group.taken()
    result["packed_graph"] = sampler.out.view(bs, GAMMA).numpy()
    result["graph_probability"] = sampler.confidence_out.numpy()
    result["counts"] = counts
    return result


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
