"""SGLang's tensor-parallel group over the ranks of a test or a benchmark."""

import os
from typing import Any, Dict

import torch

from sglang.srt.distributed.device_communicators.vocab_gather import (
    NVLinkVocabGather,
    VocabGather,
    make_vocab_gather,
)
from sglang.srt.distributed.parallel_state import (
    init_distributed_environment,
    initialize_model_parallel,
)
from sglang.srt.runtime_context import get_parallel
from sglang.test.kits.gloo_ranks_kit import take_cpu_paths
from sglang.test.test_utils import publish_build_topology


def init_group(
    rank: int, world_size: int, local_rank: int, device: str, stages: int = 1
) -> Any:
    """The group, on ``"cpu"`` over gloo or on ``"cuda"`` over NCCL.

    ``stages``: pipeline stages that the ranks are split into, each with a group.
    """
    on_cpu = device == "cpu"
    backend = "gloo" if on_cpu else "nccl"
    if on_cpu:
        # A CUDA build of torch brings NCCL, which wants CUDA devices.
        os.environ.setdefault("SGLANG_NCCL_SO_PATH", "/nonexistent")
        take_cpu_paths()
    else:
        torch.cuda.set_device(local_rank)
    init_distributed_environment(
        world_size=world_size, rank=rank, local_rank=local_rank, backend=backend
    )
    publish_build_topology(
        tp_size=world_size // stages,
        ep_size=1,
        pp_size=stages,
        device=device,
        world_rank=rank,
        disable_custom_all_reduce=on_cpu,
    )
    initialize_model_parallel(backend=backend)
    return get_parallel().tp_group


def transports(group: Any, device: str) -> Dict[str, VocabGather]:
    """Every way in which the packed draft path can exchange its words here.

    The names are those of the packed path's ``transport``. A transport counts if every
    rank of the group has it.
    """
    # As in vocab_parallel_draft.
    options = dict(local_width=4, dtype=torch.float32, symm_rows=0)
    plain = make_vocab_gather(group, prefer_nvlink=False, **options)
    if device == "cpu":
        return {"gloo": plain}
    push = make_vocab_gather(group, **options)
    pushes = group.all_gather_object(isinstance(push, NVLinkVocabGather))
    return {"nccl": plain, **({"nvlink_push": push} if all(pushes) else {})}
