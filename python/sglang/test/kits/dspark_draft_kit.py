"""What a DSpark draft is made of on a rank: Markov heads, a model, blocks to draft."""

import os
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Iterator
from unittest.mock import patch

import torch

from sglang.srt.models import dspark
from sglang.srt.models.deepseek_v4_dspark import (
    DeepseekV4ForCausalLMDSpark,
    DSparkV4MarkovHead,
)
from sglang.srt.models.dspark import DSparkDraftMixin
from sglang.srt.speculative.dspark_components.dspark_draft import (
    DraftNoise,
    sample_draft_block,
)
from sglang.srt.speculative.dspark_components.dspark_draft_sampler import (
    DsparkDraftSampler,
)
from sglang.srt.speculative.spec_tp_sync import SpecTpSync
from sglang.test.kits.block_draft_rank_kit import CountedGroup, numbers

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


def draft_model_of(
    kind: str,
    lm_head: Any,
    vocab: int,
    dtype: torch.dtype,
    seed: int,
    whole: bool,
) -> DraftModel:
    """With a Markov head of ``kind``; ``_sharded`` after it asks for SGLang's own
    sharded step."""
    kind, _, sharded = kind.partition("_")
    with environment(SGLANG_DSPARK_OPT_MARKOV_W2_TP_SHARD=str(int(bool(sharded)))):
        head = markov_head_of(kind, vocab, dtype, seed, whole)
        if sharded:
            options = {} if kind == "v4" else {"prefer_nvlink": False}
            head.configure_tp_shard(lm_head=lm_head, **options)
    return DraftModel(head, lm_head, v4=kind == "v4")


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
