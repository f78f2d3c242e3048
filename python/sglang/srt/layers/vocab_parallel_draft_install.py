"""Which draft path a spec worker takes: decided once, the same on every rank.

A worker may draft with several models (multi-layer MTP has one a layer, each with its
own head): one verdict holds for all of them.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Dict, Optional, Sequence, Tuple

import torch

from sglang.srt.layers.vocab_parallel_draft import VocabParallelDraft
from sglang.srt.layers.vocab_parallel_draft_eligibility import (
    DenseReason,
    DraftFacts,
    collect_facts,
    dense_reason,
)
from sglang.srt.layers.vocab_parallel_draft_step import reserve_ones
from sglang.srt.layers.vocab_parallel_draft_table import (
    Choice,
    agreed_choice,
    setting_of,
)
from sglang.srt.layers.vocab_parallel_draft_transport import (
    all_push,
    group_gather,
    own_push_gather,
    push_offer,
)
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.speculative.spec_utils import draft_tp_context
from sglang.srt.utils.common import log_info_on_rank0

logger = logging.getLogger(__name__)


def install_vocab_parallel_draft(spec_worker: Any) -> None:
    """Decide the draft path of a spec worker, install it, and log one line.

    Every rank of the draft's group has to call this, after the draft has its final
    heads and before CUDA graphs are captured. The decision is also left in
    ``spec_worker.vocab_parallel_draft_status``.
    """
    if hasattr(type(spec_worker), "vocab_parallel_block"):
        from sglang.srt.speculative import vocab_parallel_block_install

        reason, packed = vocab_parallel_block_install.decide_block_draft(
            spec_worker, _agree
        )
        note = ""
    else:
        reason, packed, note = _decide(spec_worker)
    mode = get_spec().speculative_vocab_parallel_draft
    status = _status(mode, reason, packed, note)
    spec_worker.vocab_parallel_draft_status = status
    if get_parallel().pp_rank == 0:
        _log_status(status)


def _decide(
    spec_worker: Any,
) -> Tuple[Optional[DenseReason], Optional[VocabParallelDraft], str]:
    """The verdict for drafts that pick their tokens from a logits processor, what the
    worker was given, and a note."""
    draft_worker = getattr(spec_worker, "draft_worker", None)
    layout = getattr(draft_worker, "parallel_layout", None)
    with draft_tp_context(layout) if layout else contextlib.nullcontext():
        parallel = get_parallel()
        group = (
            parallel.attn_tp_group if parallel.enable_dp_lm_head else parallel.tp_group
        )
        facts = collect_facts(draft_worker, group)
        reason, note = first_reason(facts), ""
        packed: Tuple[VocabParallelDraft, ...] = ()
        first = facts[0]
        if first.tp_size > 1 and first.has_packed_sites and first.pp_size == 1:
            runners = draft_worker.draft_runners
            reason, packed, note = _build(runners, first, reason, group)
    if not packed:
        return reason, None, note
    reserve_ones(first.device)
    for runner, draft in zip(draft_worker.draft_runners, packed, strict=True):
        runner.model.logits_processor.vocab_parallel_draft = draft
    # What the worker's arms ask is the same for all of them.
    draft_worker.vocab_parallel_draft = packed[0]
    return reason, packed[0], note


def first_reason(facts: Sequence[DraftFacts]) -> Optional[DenseReason]:
    """One verdict for all heads: the first reason that any of them gives."""
    return next(filter(None, map(dense_reason, facts)), None)


def _build(
    runners: Sequence[Any],
    facts: DraftFacts,
    reason: Optional[DenseReason],
    group: Any,
) -> Tuple[Optional[DenseReason], Tuple[VocabParallelDraft, ...], str]:
    """The group's common verdict, the packed path of each head if that is what it is,
    and a note.

    Whether a head runs, and which transport a rank could use, are facts of the rank:
    the ranks compare both before one of them acts on its own.
    """
    # Building a plane is no collective: a rank may leave it out.
    push = own_push_gather(group) if reason is None else None
    reason = reason or next(filter(None, map(_trial_reason, runners)), None)
    processor = runners[0].model.logits_processor
    terms = (facts.mode, facts.topk, processor.vocab_size)
    reason, pushes = _agree(reason, push_offer(push), group, terms)
    if reason is not None:
        return reason, (), ""
    gather = push if pushes else group_gather(group)
    backend = torch.distributed.get_backend(group.device_group)
    transport = "nvlink_push" if pushes else backend
    choice = Choice()
    if facts.mode == "auto":
        choice = agreed_choice(group, setting_of(runners[0], group, transport))
    if choice.reason is not None:
        return choice.reason, (), choice.note
    packed = tuple(
        VocabParallelDraft(
            runner.model.logits_processor,
            runner.model.lm_head,
            gather,
            transport,
            packed_rows=choice.packed_rows,
            k=facts.topk,
        )
        for runner in runners
    )
    return None, packed, choice.note


def _trial_reason(runner: Any) -> Optional[DenseReason]:
    """Run the head on one row: its columns have to be those of its shard."""
    head = runner.model.lm_head
    try:
        shape = (1, head.embedding_dim)
        row = torch.zeros(shape, dtype=runner.dtype, device=runner.device)
        logits = runner.model.logits_processor._compute_lm_head(row, head)
    except Exception:
        logger.exception("the draft's LM head failed on a trial row")
        return DenseReason.UNSUPPORTED_HEAD
    if logits.shape != (1, head.shard_indices.num_elements_padded):
        return DenseReason.UNSUPPORTED_HEAD
    return None


def _agree(
    reason: Optional[DenseReason], offer: int, group: Any, terms: Tuple = ()
) -> Tuple[Optional[DenseReason], bool]:
    """The ranks' common verdict, and whether all of them push (``push_offer``).

    Where verdicts differ, or the ``terms`` of packed ones (nodes that were launched
    with other flags), all ranks draft densely.
    """
    answers = group.all_gather_object((reason.value if reason else terms, offer))
    verdicts = [verdict for verdict, _ in answers]
    if len(set(verdicts)) > 1:
        log_info_on_rank0(logger, f"Vocab-parallel draft: verdicts by rank {verdicts}")
        reason = DenseReason.RANK_DISAGREEMENT
    return reason, all_push([offer for _, offer in answers])


def _status(
    mode: str, reason: Optional[DenseReason], packed: Optional[Any], note: str
) -> Dict[str, Any]:
    status: Dict[str, Any] = {"mode": mode, "path": "packed" if packed else "dense"}
    if reason is not None:
        status["reason"] = reason.value
    if packed is not None:
        status.update(transport=packed.transport, vocab_size=packed.vocab_size)
        if (rows := getattr(packed, "packed_rows", None)) is not None:
            status["packed_rows"] = str(rows)
    if note:
        status["note"] = note
    return status


def _log_status(status: Dict[str, Any]) -> None:
    algorithm = get_spec().speculative_algorithm
    details = ", ".join(f"{name}={value}" for name, value in status.items())
    log_info_on_rank0(logger, f"Vocab-parallel draft ({algorithm}): {details}")
