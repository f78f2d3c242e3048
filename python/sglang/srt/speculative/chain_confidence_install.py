"""Whether a spec worker collects the probabilities of its chains, decided at start.

The decision follows from the configuration only, and is the same on every rank.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any, Dict, Optional

import torch

from sglang.srt.arg_groups.draft_confidence_hook import longest_chain
from sglang.srt.layers.dense_logsumexp import DenseLogsumexp, shards_of
from sglang.srt.runtime_context import get_exec, get_parallel, get_schedule, get_spec
from sglang.srt.speculative.chain_confidence import ChainConfidence
from sglang.srt.utils.common import log_info_on_rank0

logger = logging.getLogger(__name__)


class OffReason(str, Enum):
    """Why no probabilities are collected; the value is its name."""

    UNSUPPORTED_WORKER = "unsupported_worker"
    PIPELINE_PARALLEL = "pipeline_parallel"
    TREE = "tree"
    # Sampled drafts are accepted by another rule than their probability tells.
    SAMPLED_DRAFT = "sampled_draft"
    UNSUPPORTED_DEVICE = "unsupported_device"


def off_reason(
    *,
    has_sites: bool,
    pp_size: int,
    topk: Optional[int],
    rejection_sampling: bool,
    device: str,
) -> Optional[OffReason]:
    """The first reason to collect nothing, or ``None``."""
    conditions = (
        (pp_size > 1, OffReason.PIPELINE_PARALLEL),
        (not has_sites, OffReason.UNSUPPORTED_WORKER),
        ((topk or 1) > 1, OffReason.TREE),
        (rejection_sampling, OffReason.SAMPLED_DRAFT),
        (device not in ("cpu", "cuda"), OffReason.UNSUPPORTED_DEVICE),
    )
    return next((reason for holds, reason in conditions if holds), None)


def install_chain_confidence(spec_worker: Any) -> None:
    """Set up collection on a spec worker, or leave it off, and log one line.

    Has to be called after the draft has its final heads and before CUDA graphs are
    captured. The decision is also left in ``spec_worker.draft_confidence_status``.
    Workers that report ``draft_probability`` by themselves have a class attribute
    ``collects_draft_probability`` and are left alone.
    """
    if getattr(type(spec_worker), "collects_draft_probability", False):
        return
    spec = get_spec()
    draft_worker = getattr(spec_worker, "draft_worker", None)
    reason = off_reason(
        has_sites=hasattr(draft_worker, "draft_confidence"),
        pp_size=get_parallel().pp_size,
        topk=spec.speculative_eagle_topk,
        rejection_sampling=spec.speculative_use_rejection_sampling,
        device=getattr(draft_worker, "device", "cpu"),
    )
    status: Dict[str, Any] = {"collects": reason is None}
    if reason is not None:
        status["reason"] = reason.value
    spec_worker.draft_confidence_status = status
    if get_parallel().pp_rank == 0:
        details = ", ".join(f"{name}={value}" for name, value in status.items())
        algorithm = spec.speculative_algorithm
        log_info_on_rank0(logger, f"Draft confidence ({algorithm}): {details}")
    if reason is not None:
        return
    for runner in draft_worker.draft_runners:
        model = runner.model
        shards, dtype = shards_of(model.lm_head), _head_dtype(runner)
        model.logits_processor.draft_logsumexp = DenseLogsumexp(shards, dtype)
    draft_worker.draft_confidence = ChainConfidence(
        _max_rows(), longest_chain(spec), draft_worker.device
    )


def _max_rows() -> int:
    graphs = get_exec().graph.cuda_graph_config
    captured = graphs.decode.max_bs if graphs is not None else None
    return max(captured or 0, get_schedule().max_running_requests or 0, 1)


def _head_dtype(runner: Any) -> Optional[torch.dtype]:
    """``head_dtype`` of ``dense_logsumexp``, from a head that runs on one row."""
    processor, head = runner.model.logits_processor, runner.model.lm_head
    if runner.device != "cuda" or processor.final_logit_softcapping:
        return None
    row = torch.zeros((1, head.embedding_dim), dtype=runner.dtype, device=runner.device)
    return processor._compute_lm_head(row, head).dtype
