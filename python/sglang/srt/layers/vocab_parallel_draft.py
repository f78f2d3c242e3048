"""Drafting without gathering the vocabulary.

``install_vocab_parallel_draft`` decides once, before any CUDA graph is captured,
whether a draft model takes the packed path. If so, its logits processor and its draft
worker both get a ``VocabParallelDraft``: the first turns hidden states into the global
winner of each row, the second turns that output into what EAGLE carries on.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Container, Dict, Optional, Tuple

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.distributed.device_communicators.vocab_gather import VocabGather
from sglang.srt.layers.logits_processor import LogitsProcessor, LogitsProcessorOutput
from sglang.srt.layers.vocab_parallel_draft_eligibility import (
    DenseReason,
    DraftFacts,
    collect_facts,
    dense_reason,
    valid_width,
)
from sglang.srt.layers.vocab_parallel_draft_step import (
    DraftStep,
    begin_step,
    finish_step,
    ones_column,
    reserve_ones,
)
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
from sglang.srt.runtime_context import (
    LoRABatchLayout,
    get_forward,
    get_parallel,
    get_spec,
)
from sglang.srt.speculative.draft_confidence import selected_probability
from sglang.srt.speculative.spec_utils import draft_tp_context
from sglang.srt.utils.common import log_info_on_rank0

logger = logging.getLogger(__name__)


class VocabParallelDraft:
    """The packed path of one draft head over its tensor-parallel group."""

    def __init__(
        self,
        processor: LogitsProcessor,
        head: torch.nn.Module,
        gather: VocabGather,
        transport: str,
        packed_rows: Optional[Container[int]] = None,
    ):
        """``packed_rows``: row counts that go packed; all of them if ``None``."""
        self.vocab_size: int = processor.vocab_size
        self.head = head
        self.vocab_start: int = head.shard_indices.org_vocab_start_index
        self.valid_width: int = valid_width(head, self.vocab_size)
        # The dense path takes a cap of 0 for none.
        self.softcap: Optional[float] = processor.final_logit_softcapping or None
        self.gather = gather
        self.transport = transport
        self.packed_rows = packed_rows

    def takes(self, rows: int) -> bool:
        """Whether a head of so many rows (padding included) goes packed."""
        return self.packed_rows is None or rows in self.packed_rows

    @staticmethod
    def is_packed(output: LogitsProcessorOutput) -> bool:
        """Which path an output took.

        Raises:
            RuntimeError: one column of logits and no ids: they were lost on the way.
        """
        logits = output.next_token_logits
        if output.logits_token_ids is None and logits is not None:
            if logits.shape[-1] > 1:
                return False
        return draft_token_ids(output) is not None

    def logits_output(
        self,
        processor: LogitsProcessor,
        pruned_states: torch.Tensor,
        lm_head: torch.nn.Module,
        step: Optional[DraftStep] = None,
        **fields: Any,
    ) -> LogitsProcessorOutput:
        """Winner of every row over the whole vocabulary; one collective.

        Args:
            processor: the draft's logits processor (head, scale).
            pruned_states: hidden states ``[rows, hidden]`` of the rows that the dense
                path runs its head on.
            lm_head: the head that eligibility was decided for.
            step: what the merge of a draft step writes besides.
            **fields: other fields of the output, passed through.

        Returns:
            ``next_token_logits`` FP32 ``[rows, 1]``, ``logits_token_ids`` int64
            ``[rows]``, ``logits_logsumexp`` FP32 ``[rows]``.
        """
        if lm_head is not self.head:
            raise RuntimeError(
                "the draft model changed its LM head after start-up; restart with "
                "--speculative-vocab-parallel-draft off"
            )
        # As in the dense path without data-parallel attention.
        with get_forward().scoped(lora_batch_layout=LoRABatchLayout.DP_LOCAL):
            logits = processor._compute_lm_head(pruned_states, lm_head)
        if processor.logit_scale is not None:
            logits.mul_(processor.logit_scale)
        token_ids, values, logsumexp = self._select(logits, step)
        return LogitsProcessorOutput(
            next_token_logits=values.unsqueeze(-1),
            logits_token_ids=token_ids,
            logits_logsumexp=logsumexp,
            **fields,
        )

    begin_step = staticmethod(begin_step)

    @staticmethod
    def finish_step(
        output: LogitsProcessorOutput, forward_batch: Any, *buffers: Any
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """``next_topk1`` after the step's forward; ``buffers`` as in ``begin_step``."""
        finish_step(draft_token_ids(output), forward_batch, *buffers)
        return VocabParallelDraft.next_topk1(output)

    @staticmethod
    def next_topk1(output: LogitsProcessorOutput) -> Tuple[torch.Tensor, torch.Tensor]:
        """``topk_p`` (constant 1.0, as in the dense path) and ``topk_index``.

        Both are ``[rows, 1]``, FP32 and int64, and views: ``topk_p`` of a constant.
        """
        topk_index = draft_token_ids(output).unsqueeze(-1)
        return ones_column(topk_index.shape[0], topk_index.device), topk_index

    @staticmethod
    def seed_topk1(output: LogitsProcessorOutput) -> Tuple[torch.Tensor, torch.Tensor]:
        """``topk_p`` (the exact probability) and ``topk_index`` after a prefill."""
        topk_index = draft_token_ids(output).unsqueeze(-1)
        probability = selected_probability(
            output.next_token_logits.squeeze(-1), output.logits_logsumexp
        )
        return probability.unsqueeze(-1), topk_index

    def _select(
        self, logits: torch.Tensor, step: Optional[DraftStep]
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = logits.shape[0]
        if rows == 0:
            empty = logits.new_empty(0, dtype=torch.float32)
            return empty.long(), empty, empty.clone()
        words = shard_winner(
            logits,
            valid_width=self.valid_width,
            vocab_start=self.vocab_start,
            softcap=self.softcap,
        )
        gathered = self.gather.gather_stacked(words)
        return merge_shard_winners(
            gathered,
            rows=rows,
            vocab_size=self.vocab_size,
            **({} if step is None else step.claim(rows)),
        )


def draft_token_ids(output: LogitsProcessorOutput) -> torch.Tensor:
    """Global token ids int64 ``[rows]`` of a packed draft output.

    Raises:
        RuntimeError: the ids were lost on the way. A consumer that went on would take
            every row's only column, token 0.
    """
    ids, logits = output.logits_token_ids, output.next_token_logits
    if ids is None or logits is None or ids.shape[0] != logits.shape[0]:
        raise RuntimeError(
            "logits_token_ids is missing or has other rows than next_token_logits in "
            "a packed draft output: the code that rebuilt the LogitsProcessorOutput "
            "did not carry draft_fields()"
        )
    return ids


def rows_of_draft_fields(
    output: LogitsProcessorOutput, rows: Any, clone: bool = False
) -> Dict[str, torch.Tensor]:
    """``rows`` (a count, a slice or an index tensor) of the packed path's fields."""
    index = slice(rows) if isinstance(rows, int) else rows
    fields = {
        "logits_token_ids": output.logits_token_ids[index],
        "logits_logsumexp": output.logits_logsumexp[index],
    }
    if clone:
        return {name: field.clone() for name, field in fields.items()}
    return fields


def install_vocab_parallel_draft(spec_worker: Any) -> None:
    """Decide the draft path of a spec worker, install it, and log one line.

    Every rank of the draft's group has to call this, after the draft has its final
    head and before CUDA graphs are captured. The decision is also left in
    ``spec_worker.vocab_parallel_draft_status``.
    """
    draft_worker = getattr(spec_worker, "draft_worker", None)
    layout = getattr(draft_worker, "parallel_layout", None)
    with draft_tp_context(layout) if layout else contextlib.nullcontext():
        parallel = get_parallel()
        group = (
            parallel.attn_tp_group if parallel.enable_dp_lm_head else parallel.tp_group
        )
        facts = collect_facts(draft_worker, group)
        reason, note = dense_reason(facts), ""
        packed = None
        if facts.tp_size > 1 and facts.has_packed_sites and facts.pp_size == 1:
            reason, packed, note = _build(draft_worker, facts, reason, group)
    if packed is not None:
        reserve_ones(facts.device)
        draft_worker.draft_runner.model.logits_processor.vocab_parallel_draft = packed
        draft_worker.vocab_parallel_draft = packed
    spec_worker.vocab_parallel_draft_status = _status(facts, reason, packed, note)
    if parallel.pp_rank == 0:
        _log_status(spec_worker.vocab_parallel_draft_status)


def _build(
    draft_worker: Any, facts: DraftFacts, reason: Optional[DenseReason], group: Any
) -> Tuple[Optional[DenseReason], Optional[VocabParallelDraft], str]:
    """The group's common verdict, the packed path if that is what it is, and a note.

    Whether the head runs, and which transport a rank could use, are facts of the rank:
    the ranks compare both before one of them acts on its own.
    """
    push = own_push_gather(group)
    reason = reason or _trial_reason(draft_worker, facts)
    reason, pushes = _agree(reason, push_offer(push), group)
    if reason is not None:
        return reason, None, ""
    gather = push if pushes else group_gather(group)
    backend = torch.distributed.get_backend(group.device_group)
    transport = "nvlink_push" if pushes else backend
    runner = draft_worker.draft_runner
    choice = Choice()
    if facts.mode == "auto":
        choice = agreed_choice(group, setting_of(runner, group, transport))
    if choice.reason is not None:
        return choice.reason, None, choice.note
    processor, head = runner.model.logits_processor, runner.model.lm_head
    packed = VocabParallelDraft(
        processor, head, gather, transport, packed_rows=choice.packed_rows
    )
    return None, packed, choice.note


def _trial_reason(draft_worker: Any, facts: DraftFacts) -> Optional[DenseReason]:
    """Run the head on one row: its columns have to be those of its shard."""
    runner = draft_worker.draft_runner
    head = runner.model.lm_head
    row = torch.zeros((1, head.embedding_dim), dtype=runner.dtype, device=facts.device)
    try:
        logits = runner.model.logits_processor._compute_lm_head(row, head)
    except Exception:
        logger.exception("the draft's LM head failed on a trial row")
        return DenseReason.UNSUPPORTED_HEAD
    if logits.shape != (1, head.shard_indices.num_elements_padded):
        return DenseReason.UNSUPPORTED_HEAD
    return None


def _agree(
    reason: Optional[DenseReason], offer: int, group: Any
) -> Tuple[Optional[DenseReason], bool]:
    """The ranks' common verdict, and whether all of them push (``push_offer``).

    Where verdicts differ, all ranks draft densely.
    """
    answers = group.all_gather_object((reason and reason.value, offer))
    verdicts = [verdict for verdict, _ in answers]
    if len(set(verdicts)) > 1:
        log_info_on_rank0(logger, f"Vocab-parallel draft: verdicts by rank {verdicts}")
        reason = DenseReason.RANK_DISAGREEMENT
    return reason, all_push([offer for _, offer in answers])


def _status(
    facts: DraftFacts,
    reason: Optional[DenseReason],
    packed: Optional[VocabParallelDraft],
    note: str = "",
) -> Dict[str, Any]:
    status = {"mode": facts.mode, "path": "packed" if packed else "dense"}
    if reason is not None:
        status["reason"] = reason.value
    if packed is not None:
        status.update(transport=packed.transport, vocab_size=packed.vocab_size)
        if packed.packed_rows is not None:
            status["packed_rows"] = str(packed.packed_rows)
    if note:
        status["note"] = note
    return status


def _log_status(status: Dict[str, Any]) -> None:
    algorithm = get_spec().speculative_algorithm
    details = ", ".join(f"{name}={value}" for name, value in status.items())
    log_info_on_rank0(logger, f"Vocab-parallel draft ({algorithm}): {details}")
