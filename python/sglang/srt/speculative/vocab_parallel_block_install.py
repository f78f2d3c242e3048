"""Decides the draft path of DFlash and DSpark workers before graphs are captured.

Both draft with the target's head and pick tokens outside the logits processor, so that
their packed path sits in the worker or in the Markov head. The verdict is reached as for
the other workers: facts that are replicated, then one comparison over the group.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Optional, Tuple

from sglang.srt.kernel_plugins.nvidia.binding import megakernel_draft_sampler
from sglang.srt.layers.vocab_parallel_draft_eligibility import (
    DenseReason,
    DraftFacts,
    block_facts,
    dense_reason,
)
from sglang.srt.layers.vocab_parallel_draft_transport import (
    Runs,
    agree_on_transport,
    gives_its_shard,
)
from sglang.srt.lora.layers import unwrap_lora_layer
from sglang.srt.models.dspark import project_through_lm_head
from sglang.srt.runtime_context import get_parallel
from sglang.srt.speculative.dflash_utils import is_dense_head_weight
from sglang.srt.speculative.spec_utils import draft_tp_context
from sglang.srt.speculative.vocab_parallel_dflash import PackedDFlash
from sglang.srt.speculative.vocab_parallel_domino import PackedDomino
from sglang.srt.speculative.vocab_parallel_markov import PackedMarkov
from sglang.srt.speculative.vocab_parallel_shard_winners import ShardWinners


@dataclasses.dataclass(frozen=True)
class BlockDraft:
    """What a worker's draft is, as far as the decision and the installation need it."""

    head: Any
    vocab_size: int
    """Ids that the draft can propose."""
    facts: DraftFacts
    head_runs: Runs
    install: Callable[[ShardWinners], None]


def decide_block_draft(
    spec_worker: Any,
) -> Tuple[Optional[DenseReason], Optional[ShardWinners]]:
    """The group's verdict, and what was installed, of a block drafter.

    Every rank of the draft's group calls this.
    """
    describe = {"dflash": _dflash, "dspark": _dspark}[spec_worker.vocab_parallel_block]
    # The target's scope: a draft's own group hides data-parallel attention.
    facts = block_facts()
    if get_parallel().pp_size > 1:
        # Only the last stage holds the draft.
        return dense_reason(facts), None
    with draft_tp_context(spec_worker.draft_parallel_layout):
        group = get_parallel().tp_group
        draft = describe(spec_worker, facts, group)
        reason = dense_reason(draft.facts)
        if reason is None and facts.mode == "auto":
            # The table of auto holds steps of a logits processor.
            reason = DenseReason.NOT_MEASURED
        if draft.facts.tp_size == 1:
            return reason, None
        terms = (draft.facts.mode, draft.vocab_size)
        agreed = agree_on_transport(group, reason, draft.head_runs, terms)
    if agreed.reason is not None:
        return agreed.reason, None
    winners = ShardWinners(draft.head, draft.vocab_size, agreed.gather, agreed.name)
    draft.install(winners)
    return None, winners


def _dflash(spec_worker: Any, facts: DraftFacts, group: Any) -> BlockDraft:
    head = unwrap_lora_layer(
        getattr(spec_worker.target_worker.model_runner.model, "lm_head", None)
    )
    vocab_size = int(getattr(head, "org_vocab_size", 0))
    pool = spec_worker.domino_candidate_pool_size
    domino = spec_worker._is_domino
    facts = dataclasses.replace(
        facts,
        device=str(spec_worker.device).split(":")[0],
        candidate_search=_searches(spec_worker),
        whole_vocabulary=domino and not 0 < pool < vocab_size,
        **_head_facts(head, group),
    )

    def install(winners: ShardWinners) -> None:
        packed = PackedDomino(winners) if domino else PackedDFlash(head, winners)
        spec_worker.vocab_parallel_draft = packed

    return BlockDraft(head, vocab_size, facts, lambda: _is_dense_shard(head), install)


def _dspark(spec_worker: Any, facts: DraftFacts, group: Any) -> BlockDraft:
    model = spec_worker.draft_model
    head, markov_head = model.lm_head, model.markov_head
    vocab_size = min(
        int(getattr(head, "org_vocab_size", 0)),
        int(getattr(markov_head, "vocab_size", 0)),
    )
    head_facts = _head_facts(head, group)
    # A prefill server of a disaggregated deployment has pruned its Markov head.
    head_facts["supported_head"] &= markov_head is not None
    facts = dataclasses.replace(
        facts,
        device=str(spec_worker.device).split(":")[0],
        sampled_draft=not spec_worker._greedy_draft,
        megakernel=megakernel_draft_sampler(model) is not None,
        **head_facts,
    )

    def install(winners: ShardWinners) -> None:
        markov_head.vocab_parallel_draft = PackedMarkov(winners)

    def head_runs() -> bool:
        return gives_its_shard(
            head,
            lambda row: project_through_lm_head(row, head),
            spec_worker.draft_model_runner.dtype,
            spec_worker.device,
        )

    return BlockDraft(head, vocab_size, facts, head_runs, install)


def _searches(spec_worker: Any) -> bool:
    """Whether the draft searches a lattice of candidates (DFlash2, LiLiCorr)."""
    return spec_worker.selector is not None or spec_worker.lilicorr is not None


def _head_facts(head: Any, group: Any) -> dict:
    shard = getattr(head, "shard_indices", None)
    return dict(
        tp_size=group.world_size,
        supported_head=shard is not None and head.tp_size == group.world_size,
        added_vocab=shard is not None and head.num_embeddings > head.org_vocab_size,
    )


def _is_dense_shard(head: Any) -> bool:
    """Whether DFlash can multiply by the head's weight, as it does at more than one
    rank."""
    weight = getattr(head, "weight", None)
    rows = head.shard_indices.num_org_elements
    return is_dense_head_weight(weight) and weight.shape[0] >= max(rows, 1)
