"""Whether a spec worker collects the probabilities of its chains, decided at start.

The decision is the same on every rank of the draft, and so is the adaptive policy that
goes by it. With pipeline stages it is the last one's, which hosts the draft.
"""

from __future__ import annotations

import contextlib
import logging
from enum import Enum
from typing import Any, Dict, List, Optional

import torch

from sglang.srt.arg_groups.draft_confidence_hook import POLICY_FLAG, longest_chain
from sglang.srt.environ import envs
from sglang.srt.layers.dense_logsumexp import DenseLogsumexp, shards_of
from sglang.srt.runtime_context import get_exec, get_parallel, get_schedule, get_spec
from sglang.srt.speculative.adaptive_confidence import (
    ConfidencePolicy,
    confidence_policy,
)
from sglang.srt.speculative.chain_confidence import ChainConfidence
from sglang.srt.speculative.spec_utils import draft_tp_context
from sglang.srt.utils.common import log_info_on_rank0

logger = logging.getLogger(__name__)


class OffReason(str, Enum):
    """Why no probabilities are collected; the value is its name."""

    UNSUPPORTED_WORKER = "unsupported_worker"
    # A prefill server: its stages hand on no chains, and verify none.
    PIPELINE_PARALLEL = "pipeline_parallel"
    TREE = "tree"
    # Sampled drafts are accepted by another rule than their probability tells.
    SAMPLED_DRAFT = "sampled_draft"
    UNSUPPORTED_DEVICE = "unsupported_device"
    UNSUPPORTED_HEAD = "unsupported_head"


def off_reason(
    *,
    has_sites: bool,
    pp_size: int,
    pp_relays_chains: bool,
    topk: Optional[int],
    rejection_sampling: bool,
    device: str,
) -> Optional[OffReason]:
    """The first reason to collect nothing, or ``None``."""
    conditions = (
        (pp_size > 1 and not pp_relays_chains, OffReason.PIPELINE_PARALLEL),
        (not has_sites, OffReason.UNSUPPORTED_WORKER),
        ((topk or 1) > 1, OffReason.TREE),
        (rejection_sampling, OffReason.SAMPLED_DRAFT),
        (device not in ("cpu", "cuda"), OffReason.UNSUPPORTED_DEVICE),
    )
    return next((reason for holds, reason in conditions if holds), None)


def install_chain_confidence(spec_worker: Any) -> None:
    """Set up collection on a spec worker, or leave it off, and log one line. The target's
    worker takes its place on a pipeline stage without a draft.

    Every rank of every pipeline stage has to call this, after the draft has its final
    heads and before CUDA graphs are captured. The decision is also left in
    ``spec_worker.draft_confidence_status``. The confidence policy replaces SGLang's in
    the worker's adaptive controller only where there is something to go by.
    """
    spec = get_spec()
    reason = _install(getattr(spec_worker, "draft_worker", None))
    if get_parallel().pp_size > 1:
        # The other stages have no draft; they report what the last one collects.
        reason = get_parallel().pp_group.all_gather_object(reason)[-1]
    status: Dict[str, Any] = {"collects": reason is None}
    if reason is not None:
        status["reason"] = reason.value
    spec_worker.draft_confidence_status = status
    details = ", ".join(f"{name}={value}" for name, value in status.items())
    algorithm = spec.speculative_algorithm
    if get_parallel().pp_rank == 0:
        log_info_on_rank0(logger, f"Draft confidence ({algorithm}): {details}")
    if spec.speculative_adaptive and spec.speculative_adaptive_policy == "confidence":
        _choose_policy(spec_worker, reason)


def _install(draft_worker: Any) -> Optional[OffReason]:
    """Set up collection on this rank's draft; the reason where it stays off."""
    spec = get_spec()
    reason = off_reason(
        has_sites=hasattr(draft_worker, "draft_confidence"),
        pp_size=get_parallel().pp_size,
        pp_relays_chains=envs.SGLANG_ENABLE_PP_SPEC.get(),
        topk=spec.speculative_eagle_topk,
        rejection_sampling=spec.speculative_use_rejection_sampling,
        device=getattr(draft_worker, "device", "cpu"),
    )
    if reason is None and not _install_logsumexps(draft_worker):
        reason = OffReason.UNSUPPORTED_HEAD
    if reason is None:
        draft_worker.draft_confidence = ChainConfidence(
            _max_rows(), longest_chain(spec), draft_worker.device
        )
    return reason


def _choose_policy(spec_worker: Any, reason: Optional[OffReason]) -> None:
    """Steps by confidence; by accept lengths, which the controller starts with, where
    nothing is collected."""
    if reason is None:
        policy = _agreed_policy(spec_worker.speculative_num_steps)
        spec_worker.adaptive_controller.params = policy
    elif get_parallel().tp_rank == get_parallel().pp_rank == 0:
        logger.warning(
            f"{POLICY_FLAG} confidence: nothing is collected here ({reason.value}), so "
            "that adaptive steps go by accept lengths."
        )


def _agreed_policy(num_steps: int) -> ConfidencePolicy:
    """The policy that every rank read from the files of its own host.

    Raises:
        ValueError: on every rank, if any rank cannot use its files or they differ: ranks
            that choose different steps would wait for each other.
    """
    policy, said = None, None
    try:
        policy = confidence_policy(num_steps)
        said = policy.settings
    except Exception as error:
        # A rank that left here alone would leave the others waiting.
        said = f"{type(error).__name__}: {error}"
    everyone = [said]
    if get_parallel().tp_size > 1:
        everyone = get_parallel().tp_group.all_gather_object(said)
    for rank, other in enumerate(everyone):
        if isinstance(other, str):
            raise ValueError(f"{POLICY_FLAG} confidence, TP rank {rank}: {other}")
        if other != everyone[0]:
            raise ValueError(
                f"{POLICY_FLAG} confidence: TP ranks 0 and {rank} read {everyone[0]} and "
                f"{other}. --speculative-adaptive-config and "
                "--speculative-draft-confidence-temperatures have to name files of the "
                "same content on every host."
            )
    return policy


def _max_rows() -> int:
    graphs = get_exec().graph.cuda_graph_config
    captured = graphs.decode.max_bs if graphs is not None else None
    return max(captured or 0, get_schedule().max_running_requests or 0, 1)


def _install_logsumexps(draft_worker: Any) -> bool:
    """Let every draft model's logits processor compute the log-sum-exp; ``False``, and
    nothing changed, where a head of any rank does not run."""
    layout = getattr(draft_worker, "parallel_layout", None)
    with draft_tp_context(layout) if layout else contextlib.nullcontext():
        found = _logsumexps(draft_worker.draft_runners)
        if get_parallel().tp_size > 1:
            verdicts = get_parallel().tp_group.all_gather_object(found is not None)
            found = found if all(verdicts) else None
    for runner, logsumexp in zip(draft_worker.draft_runners, found or ()):
        runner.model.logits_processor.draft_logsumexp = logsumexp
    return found is not None


def _logsumexps(runners: Any) -> Optional[List[DenseLogsumexp]]:
    try:
        return [
            DenseLogsumexp(shards_of(runner.model.lm_head), _head_dtype(runner))
            for runner in runners
        ]
    except Exception:
        # Never raises: a rank that left here alone would leave the others waiting.
        logger.exception("the draft's LM head failed on a trial row")
        return None


def _head_dtype(runner: Any) -> Optional[torch.dtype]:
    """``head_dtype`` of ``dense_logsumexp``, from a head that runs on one row."""
    processor, head = runner.model.logits_processor, runner.model.lm_head
    if runner.device != "cuda" or processor.final_logit_softcapping:
        return None
    row = torch.zeros((1, head.embedding_dim), dtype=runner.dtype, device=runner.device)
    return processor._compute_lm_head(row, head).dtype
