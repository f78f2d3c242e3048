"""Drafting without gathering the vocabulary.

Where ``vocab_parallel_draft_install`` chose the packed path, the logits processor and
the draft worker both hold a ``VocabParallelDraft``: the first turns hidden states into
the global winner of each row, the second turns that output into what EAGLE carries on.
"""

from __future__ import annotations

from typing import Any, Container, Dict, NamedTuple, Optional, Tuple

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.distributed.device_communicators.vocab_gather import VocabGather
from sglang.srt.layers.logits_processor import LogitsProcessor, LogitsProcessorOutput
from sglang.srt.layers.vocab_parallel_draft_eligibility import (
    gathers_rows,
    valid_width,
)
from sglang.srt.layers.vocab_parallel_draft_step import (
    DraftStep,
    begin_step,
    finish_step,
    ones_column,
)
from sglang.srt.runtime_context import LoRABatchLayout, get_forward
from sglang.srt.speculative.draft_confidence import selected_probability


class OwnRows(NamedTuple):
    """A rank's rows among those of all data-parallel ranks. ``start``: int64 scalar
    tensor. Padding rows are counted, and may hold any rank's rows."""

    start: torch.Tensor
    count: int

    def of(self, gathered: torch.Tensor, rows: int) -> torch.Tensor:
        """These rows of gathered words ``[words, rows_padded]`` of ``rows`` rows."""
        own = self.start + torch.arange(self.count, device=gathered.device)
        return gathered.index_select(1, own.clamp_(max=rows - 1))


class VocabParallelDraft:
    """The packed path of one draft head over its tensor-parallel group."""

    def __init__(
        self,
        processor: LogitsProcessor,
        head: torch.nn.Module,
        gather: VocabGather,
        transport: str,
        packed_rows: Optional[Container[int]] = None,
        k: int = 1,
    ):
        """``packed_rows``: row counts that go packed; all of them if ``None``.
        ``k``: candidates of a row, more than one for a draft tree."""
        self.vocab_size: int = processor.vocab_size
        self.head = head
        self.vocab_start: int = head.shard_indices.org_vocab_start_index
        self.valid_width: int = valid_width(head, self.vocab_size)
        # The dense path takes a cap of 0 for none.
        self.softcap: Optional[float] = processor.final_logit_softcapping or None
        self.gather = gather
        self.transport = transport
        self.packed_rows = packed_rows
        self.k = k
        self.gathers_rows = gathers_rows(processor)

    def takes(self, rows: int) -> bool:
        """Whether a head of so many rows (padding included) goes packed."""
        return self.packed_rows is None or rows in self.packed_rows

    def is_packed(self, output: LogitsProcessorOutput) -> bool:
        """Which path an output took.

        Raises:
            RuntimeError: ``k`` columns of logits and no ids: they were lost on the way.
        """
        logits = output.next_token_logits
        if output.logits_token_ids is None and logits is not None:
            if logits.shape[-1] > self.k:
                return False
        return draft_token_ids(output) is not None

    def logits_output(
        self,
        processor: LogitsProcessor,
        pruned_states: torch.Tensor,
        lm_head: torch.nn.Module,
        metadata: Any = None,
        sample_indices: Optional[torch.Tensor] = None,
        step: Optional[DraftStep] = None,
        **fields: Any,
    ) -> LogitsProcessorOutput:
        """The ``k`` best of every row over the whole vocabulary; one collective.

        Args:
            processor: the draft's logits processor (head, scale).
            pruned_states: hidden states ``[rows, hidden]`` of the rows that the dense
                path runs its head on.
            lm_head: the head that eligibility was decided for.
            metadata: ``LogitsMetadata`` of the batch. With data-parallel attention and
                a head over all ranks it says whose rows are where: all ranks run the
                head on all rows, an idle rank too, and each keeps its own.
            sample_indices: int64, the rows to hand on; all of them if ``None``. A
                request for input logprobs adds rows, which a draft has no use for.
            step: what the merge of a draft step writes besides.
            **fields: other fields of the output, passed through.

        Returns:
            ``next_token_logits`` FP32 ``[rows, k]``, ``logits_token_ids`` int64
            ``[rows]`` or, with ``k`` > 1, ``[rows, k]``, largest logit first, and
            ``logits_logsumexp`` FP32 ``[rows]``.
        """
        if lm_head is not self.head:
            raise RuntimeError(
                "the draft model changed its LM head after start-up; restart with "
                "--speculative-vocab-parallel-draft off"
            )
        own, layout = None, LoRABatchLayout.DP_LOCAL
        if self.gathers_rows:
            count, layout = pruned_states.shape[0], LoRABatchLayout.TP_GLOBAL
            pruned_states, _ = processor._gather_dp_attn_hidden_states(
                pruned_states, metadata
            )
            own = OwnRows(metadata.dp_local_start_pos, count)
        with get_forward().scoped(lora_batch_layout=layout):
            logits = processor._compute_lm_head(pruned_states, lm_head)
        if processor.logit_scale is not None:
            logits.mul_(processor.logit_scale)
        selected = self._select(logits, step, own)
        if sample_indices is not None:
            selected = tuple(field[sample_indices] for field in selected)
        token_ids, values, logsumexp = selected
        return LogitsProcessorOutput(
            next_token_logits=values.view(-1, self.k),
            logits_token_ids=token_ids,
            logits_logsumexp=logsumexp,
            mm_input_embeds=getattr(metadata, "mm_input_embeds", None),
            **fields,
        )

    begin_step = staticmethod(begin_step)

    @staticmethod
    def finish_step(
        output: LogitsProcessorOutput, forward_batch: Any, *buffers: Any
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """``next_topk`` after the step's forward; ``buffers`` as in ``begin_step``."""
        finish_step(draft_token_ids(output), forward_batch, *buffers)
        return VocabParallelDraft.next_topk(output)

    @staticmethod
    def next_topk(output: LogitsProcessorOutput) -> Tuple[torch.Tensor, torch.Tensor]:
        """``topk_p`` FP32 and ``topk_index`` int64, ``[rows, k]``, of a draft step.

        In a tree ``topk_p`` is the exact probability, in a chain the constant 1.0, as
        in the dense path; there both are views, ``topk_p`` of a constant.
        """
        token_ids = draft_token_ids(output)
        if token_ids.dim() == 2:
            return VocabParallelDraft.seed_topk(output)
        return ones_column(token_ids.shape[0], token_ids.device), token_ids[:, None]

    @staticmethod
    def seed_topk(
        output: LogitsProcessorOutput, rows: Optional[torch.Tensor] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """``topk_p`` (the exact probability) and ``topk_index``, ``[rows, k]``, where
        the dense path hands on a softmax: after a prefill, at every step of multi-layer
        MTP, and at every step of a tree.

        ``rows``: an index tensor of the rows to hand on, all of them if ``None``.
        """
        token_ids, logits = draft_token_ids(output), output.next_token_logits
        lse = output.logits_logsumexp
        if rows is not None:
            token_ids, logits, lse = token_ids[rows], logits[rows], lse[rows]
        probability = selected_probability(logits, lse.unsqueeze(-1))
        return probability, token_ids.view(logits.shape)

    def _select(
        self,
        logits: torch.Tensor,
        step: Optional[DraftStep],
        own: Optional[OwnRows] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        # The same on every rank of the gather, so that all enter it or none.
        rows = logits.shape[0]
        if rows == 0:
            empty = logits.new_empty(0, dtype=torch.float32)
            values = empty if self.k == 1 else empty.view(0, self.k)
            return values.long(), values, empty.clone()
        words = shard_winner(
            logits,
            valid_width=self.valid_width,
            vocab_start=self.vocab_start,
            softcap=self.softcap,
            k=self.k,
        )
        gathered = self.gather.gather_stacked(words)
        if own is not None:
            gathered, rows = own.of(gathered, rows), own.count
        return merge_shard_winners(
            gathered,
            rows=rows,
            vocab_size=self.vocab_size,
            k=self.k,
            **({} if step is None else step.claim(rows)),
        )


def draft_token_ids(output: LogitsProcessorOutput) -> torch.Tensor:
    """Global token ids int64 ``[rows]`` of a packed draft output, ``[rows, k]`` of a
    tree's.

    Raises:
        RuntimeError: the ids were lost on the way. A consumer that went on would take
            the columns of the candidates for token ids.
    """
    ids, logits = output.logits_token_ids, output.next_token_logits
    lse = output.logits_logsumexp
    if ids is None or logits is None or lse is None or not _same_rows(ids, logits, lse):
        raise RuntimeError(
            "logits_token_ids or logits_logsumexp is missing or has other rows than "
            "next_token_logits in a packed draft output: the code that rebuilt the "
            "LogitsProcessorOutput did not carry draft_fields()"
        )
    return ids


def _same_rows(
    ids: torch.Tensor, logits: torch.Tensor, logsumexp: torch.Tensor
) -> bool:
    rows = logits.shape[0]
    return ids.numel() == logits.numel() and ids.shape[0] == rows == logsumexp.shape[0]


def rows_of_draft_fields(
    output: LogitsProcessorOutput, rows: Any, clone: bool = False
) -> Dict[str, torch.Tensor]:
    """``rows`` (a count, a slice or an index tensor) of the fields that a draft's
    output has: on the packed path all, on the dense one the log-sum-exp or none."""
    index = slice(rows) if isinstance(rows, int) else rows
    fields = {
        name: field[index]
        for name in ("logits_token_ids", "logits_logsumexp")
        if (field := getattr(output, name)) is not None
    }
    if clone:
        return {name: field.clone() for name, field in fields.items()}
    return fields
