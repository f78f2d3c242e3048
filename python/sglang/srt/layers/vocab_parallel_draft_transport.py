"""Which collective carries the packed words, agreed on before anything is captured.

Whether a rank has a push plane, can load its kernel, and how large a slot is are facts
of that rank. A rank that pushes while another one waits in NCCL hangs both, so that
each rank only offers here, and the group decides on all offers.
"""

from __future__ import annotations

import logging
from typing import Any, List, Optional

import torch

from sglang.srt.distributed.device_communicators.vocab_gather import (
    NVLinkVocabGather,
    VocabGather,
    make_vocab_gather,
)

logger = logging.getLogger(__name__)

# The push plane moves 16-byte vectors; its pull buffer would go unused.
_OPTIONS = dict(local_width=4, dtype=torch.float32, symm_rows=0)


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
