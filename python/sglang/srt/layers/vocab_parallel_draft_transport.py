"""Which collective carries the packed words, agreed on before anything is captured.

Whether a head runs, and whether a rank has a push plane, can load its kernel, and how
large a slot is are facts of that rank. A rank that pushes while another one waits in NCCL
hangs both, so that each rank only offers here, and the group decides on all offers.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch

from sglang.srt.distributed.device_communicators.vocab_gather import (
    NVLinkVocabGather,
    VocabGather,
    make_vocab_gather,
)
from sglang.srt.layers.vocab_parallel_draft_eligibility import DenseReason
from sglang.srt.utils.common import log_info_on_rank0

logger = logging.getLogger(__name__)

Runs = Callable[[], bool]
"""Whether what this rank would draft with runs; may be called once, and not at all."""


class Transport(NamedTuple):
    """What a group agreed on; with a ``reason`` it drafts densely."""

    reason: Optional[DenseReason]
    gather: Optional[VocabGather] = None
    name: str = ""


# The push plane moves 16-byte vectors; its pull buffer would go unused.
_OPTIONS = dict(local_width=4, dtype=torch.float32, symm_rows=0)


def agree_on_transport(
    group: Any, reason: Optional[DenseReason], runs: Runs, terms: Tuple
) -> Transport:
    """The group's verdict on drafting packed, and what carries the words.

    Every rank calls this with the ``reason`` that follows from replicated facts, if
    any, and with the ``terms`` that the ranks of a packed verdict have to share.
    """
    # Building a plane is no collective: a rank may leave it out.
    push = own_push_gather(group) if reason is None else None
    if reason is None and not runs():
        reason = DenseReason.UNSUPPORTED_HEAD
    reason, pushes = agree(reason, push_offer(push), group, terms)
    if reason is not None:
        return Transport(reason)
    if pushes:
        return Transport(None, push, "nvlink_push")
    backend = torch.distributed.get_backend(group.device_group)
    return Transport(None, group_gather(group), backend)


def agree(
    reason: Optional[DenseReason], offer: int, group: Any, terms: Tuple
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


def gives_its_shard(
    head: Any,
    project: Callable[[torch.Tensor], torch.Tensor],
    dtype: torch.dtype,
    device: Any,
) -> bool:
    """Run a head on one row: its columns have to be those of its shard.

    ``project`` gives this rank's logits of hidden states ``[rows, hidden]``.
    """
    try:
        shape = (1, head.embedding_dim)
        logits = project(torch.zeros(shape, dtype=dtype, device=device))
    except Exception:
        logger.exception("the draft's LM head failed on a trial row")
        return False
    return logits.shape == (1, head.shard_indices.num_elements_padded)


def own_push_gather(group: Any) -> Optional[NVLinkVocabGather]:
    """This rank's NVLink push, ready to run; ``None`` if it has none or it fails.

    Never raises: a rank that left here alone would leave the others waiting.
    """
    try:
        gather = make_vocab_gather(group, **_OPTIONS)
        if not isinstance(gather, NVLinkVocabGather):
            return None
        _load_push_kernel(group.world_size)
    except Exception:
        logger.exception(
            "the NVLink push of draft words cannot be set up on this rank; all ranks "
            "use the group's other all-gather"
        )
        return None
    return gather


def push_offer(gather: Optional[NVLinkVocabGather]) -> int:
    """What a rank tells the group: bytes of a push slot, 0 if it cannot push.

    Words above the slot go another way, so that the ranks' slots have to be equal.
    """
    return gather.slot_bytes if gather is not None else 0


def all_push(offers: List[int]) -> bool:
    """Whether the group pushes: every rank can, with slots of one size."""
    return offers[0] > 0 and len(set(offers)) == 1


def group_gather(group: Any) -> VocabGather:
    """The group's own all-gather, which every rank has."""
    return make_vocab_gather(group, prefer_nvlink=False, **_OPTIONS)


def _load_push_kernel(world_size: int) -> None:
    """Compile it here, on each rank, instead of at the first step."""
    from sglang.kernels.ops.communication import nvlink_comm

    nvlink_comm._jit_push_module(torch.float32, world_size)
