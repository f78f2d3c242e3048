"""Whether a draft model may propose tokens without gathering the vocabulary.

``dense_reason`` is a pure function of facts that are the same on every rank, so that
every rank takes the same path; ``collect_facts`` reads them from a spec worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Dict, Optional, Tuple

import torch

from sglang.kernels.ops.speculative.shard_winner import MAX_K
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.runtime_context import get_parallel, get_spec


class DenseReason(str, Enum):
    """Why a configuration drafts from gathered logits; the value is its name."""

    UNSUPPORTED_WORKER = "unsupported_worker"
    PIPELINE_PARALLEL = "pipeline_parallel"
    TP1 = "tp1"
    TOPK = "topk"
    REJECTION_SAMPLING = "rejection_sampling"
    SAMPLED_DRAFT = "sampled_draft"
    CANDIDATE_SEARCH = "candidate_search"
    WHOLE_VOCABULARY = "whole_vocabulary"
    MEGAKERNEL = "megakernel"
    TOKEN_MAP = "token_map"
    # Of block drafters; a logits processor serves data-parallel attention.
    DP_ATTENTION = "dp_attention"
    DP_LM_HEAD = "dp_lm_head"
    LM_HEAD_ALL_TO_ALL = "lm_head_all_to_all"
    UNSUPPORTED_HEAD = "unsupported_head"
    ADDED_VOCAB = "added_vocab"
    NO_GATHER = "no_gather"
    NONPOSITIVE_SCALE = "nonpositive_scale"
    UNSUPPORTED_DEVICE = "unsupported_device"
    SOFTCAP_KERNEL = "softcap_kernel"
    RANK_DISAGREEMENT = "rank_disagreement"
    # Of auto, from its table of measurements (vocab_parallel_draft_table.py).
    NOT_MEASURED = "not_measured"
    MEASURED_SLOWER = "measured_slower"


@dataclass(frozen=True)
class DraftFacts:
    """Replicated facts about a draft; the defaults are those of an eligible one."""

    mode: str = "on"
    has_packed_sites: bool = True
    pp_size: int = 1
    tp_size: int = 2
    topk: int = 1
    rejection_sampling: bool = False
    sampled_draft: bool = False
    candidate_search: bool = False
    whole_vocabulary: bool = False
    megakernel: bool = False
    token_map: bool = False
    dp_attention: bool = False
    dp_lm_head: bool = False
    lm_head_all_to_all: bool = False
    gathers_rows: bool = False
    supported_head: bool = True
    added_vocab: bool = False
    gathers: bool = True
    logit_scale: Optional[float] = None
    softcap: Optional[float] = None
    device: str = "cpu"


def dense_reason(facts: DraftFacts) -> Optional[DenseReason]:
    """The first reason to draft densely, or ``None`` for the packed path."""
    scale = facts.logit_scale
    conditions = (
        (facts.pp_size > 1, DenseReason.PIPELINE_PARALLEL),
        (facts.dp_lm_head, DenseReason.DP_LM_HEAD),
        (facts.lm_head_all_to_all, DenseReason.LM_HEAD_ALL_TO_ALL),
        (facts.dp_attention, DenseReason.DP_ATTENTION),
        (facts.tp_size == 1, DenseReason.TP1),
        (not facts.gathers, DenseReason.NO_GATHER),
        (not facts.has_packed_sites, DenseReason.UNSUPPORTED_WORKER),
        ((facts.topk or 1) > MAX_K, DenseReason.TOPK),
        (facts.rejection_sampling, DenseReason.REJECTION_SAMPLING),
        (facts.sampled_draft, DenseReason.SAMPLED_DRAFT),
        (facts.candidate_search, DenseReason.CANDIDATE_SEARCH),
        (facts.whole_vocabulary, DenseReason.WHOLE_VOCABULARY),
        (facts.megakernel, DenseReason.MEGAKERNEL),
        (facts.token_map, DenseReason.TOKEN_MAP),
        (facts.added_vocab, DenseReason.ADDED_VOCAB),
        (not facts.supported_head, DenseReason.UNSUPPORTED_HEAD),
        (scale is not None and scale <= 0, DenseReason.NONPOSITIVE_SCALE),
        (facts.device not in ("cpu", "cuda"), DenseReason.UNSUPPORTED_DEVICE),
        # Bit-equality needs the dense path's own tanh, libdevice's on CUDA.
        (bool(facts.softcap) and facts.device != "cpu", DenseReason.SOFTCAP_KERNEL),
        # The table holds steps of chains, by the rows of the rank itself: with rows of
        # all data-parallel ranks, ranks with other rows would choose another path.
        (
            facts.mode == "auto" and (facts.topk != 1 or facts.gathers_rows),
            DenseReason.NOT_MEASURED,
        ),
    )
    return next((reason for holds, reason in conditions if holds), None)


def collect_facts(draft_worker: Any, group: Any) -> Tuple[DraftFacts, ...]:
    """Facts of each draft model of a worker (``None`` if the algorithm has none).

    A worker without packed sites gives one set. Must run after the draft has its final
    heads. ``group`` is the heads' TP group.
    """
    spec = get_spec()
    common = dict(
        mode=spec.speculative_vocab_parallel_draft,
        pp_size=get_parallel().pp_size,
        tp_size=group.world_size,
        topk=spec.speculative_eagle_topk,
        rejection_sampling=spec.speculative_use_rejection_sampling,
    )
    runners = getattr(draft_worker, "draft_runners", ())
    if not hasattr(draft_worker, "vocab_parallel_draft"):
        gathers = not runners or any(_gathers(runner.model) for runner in runners)
        return (DraftFacts(has_packed_sites=False, gathers=gathers, **common),)
    hot_ids = getattr(draft_worker, "hot_token_id", None)
    return tuple(_head_facts(runner, hot_ids, group, common) for runner in runners)


def _head_facts(
    runner: Any, hot_ids: Optional[torch.Tensor], group: Any, common: Dict[str, Any]
) -> DraftFacts:
    model = runner.model
    head = getattr(model, "lm_head", None)
    processor = getattr(model, "logits_processor", None)
    scale = getattr(processor, "logit_scale", None)
    return DraftFacts(
        token_map=_has_foreign_map(model, processor, hot_ids),
        supported_head=_is_supported(processor, head, group),
        added_vocab=_has_added_vocab(head),
        gathers=_gathers(model),
        gathers_rows=gathers_rows(processor),
        logit_scale=None if scale is None else float(scale),
        softcap=getattr(processor, "final_logit_softcapping", None),
        device=runner.device,
        **common,
    )


def block_facts() -> DraftFacts:
    """Facts of the configuration for a draft that picks a block's tokens itself.

    Block drafters are told a tree width and rejection sampling like any other, and read
    neither.
    """
    parallel = get_parallel()
    return DraftFacts(
        mode=get_spec().speculative_vocab_parallel_draft,
        pp_size=parallel.pp_size,
        dp_attention=parallel.attn_dp_size > 1,
        dp_lm_head=parallel.enable_dp_lm_head,
        lm_head_all_to_all=parallel.enable_tp_lm_head_all_to_all,
    )


def valid_width(head: Any, vocab_size: int) -> int:
    """Columns of the head's shard that are real token ids below ``vocab_size``."""
    shard = head.shard_indices
    end = min(shard.org_vocab_end_index, vocab_size)
    return max(0, end - shard.org_vocab_start_index)


def gathers_rows(processor: Any) -> bool:
    """Whether the head runs on the rows of all data-parallel ranks."""
    return getattr(processor, "do_tensor_parallel_all_gather_dp_attn", False)


def _gathers(model: Any) -> bool:
    processor = getattr(model, "logits_processor", None)
    return getattr(processor, "do_tensor_parallel_all_gather", False)


def _has_foreign_map(
    model: Any, processor: Any, hot_ids: Optional[torch.Tensor]
) -> bool:
    """Whether draft ids are mapped by anything but the draft model's own table.

    EAGLE3 checkpoints carry a table (``d2t``), one entry a token of the draft's
    vocabulary, which the worker applies to merged ids. ``--speculative-token-map``
    selects rows of the target's head instead, by global ids also where the head is
    sharded.
    """
    if hot_ids is None:
        return False
    own = getattr(model, "hot_token_id", None)
    return own is None or hot_ids.shape[0] != processor.vocab_size


def _has_added_vocab(head: Any) -> bool:
    return getattr(head, "num_embeddings", 0) > getattr(head, "org_vocab_size", 0)


def _is_supported(processor: Any, head: Any, group: Any) -> bool:
    """Whether the head is ``group``'s vocabulary shard as the processor reads it.

    The dense path joins the ranks' columns side by side, so that a shard has to start
    at its rank times the padded width.
    """
    shard = getattr(head, "shard_indices", None)
    if type(processor) is not LogitsProcessor or shard is None:
        return False
    start = group.rank_in_group * shard.num_elements_padded
    return (
        head.tp_size == group.world_size and shard.padded_org_vocab_start_index == start
    )
