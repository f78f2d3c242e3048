"""Which draft path a spec worker takes: decided once, the same on every rank.

A worker may draft with several models (multi-layer MTP has one a layer, each with its
own head): one verdict holds for all of them.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Dict, Optional, Sequence, Tuple

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
    agree_on_transport,
    gives_its_shard,
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

        reason, packed = vocab_parallel_block_install.decide_block_draft(spec_worker)
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
    and a note."""
    processor = runners[0].model.logits_processor
    terms = (facts.mode, facts.topk, processor.vocab_size)
    agreed = agree_on_transport(
        group, reason, lambda: all(map(head_runs, runners)), terms
    )
    if agreed.reason is not None:
        return agreed.reason, (), ""
    choice = Choice()
    if facts.mode == "auto":
        choice = agreed_choice(group, setting_of(runners[0], group, agreed.name))
    if choice.reason is not None:
        return choice.reason, (), choice.note
    packed = tuple(
        VocabParallelDraft(
            runner.model.logits_processor,
            runner.model.lm_head,
            agreed.gather,
            agreed.name,
            packed_rows=choice.packed_rows,
            k=facts.topk,
        )
        for runner in runners
    )
    return None, packed, choice.note


def head_runs(runner: Any) -> bool:
    """Whether a draft's head gives the columns of its shard."""
    head, processor = runner.model.lm_head, runner.model.logits_processor
    return gives_its_shard(
        head,
        lambda row: processor._compute_lm_head(row, head),
        runner.dtype,
        runner.device,
    )


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
