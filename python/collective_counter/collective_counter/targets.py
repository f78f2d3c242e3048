"""Every function that can carry a collective, and where its tensors are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RESULT = "result"


@dataclass(frozen=True)
class Target:
    """A hooked callable.

    `output` and `input` are (position, keyword) of the argument, or RESULT for what
    the call returns, or None when there is no tensor to measure.
    """

    path: str
    kind: str
    output: tuple[int, str] | str | None
    input: tuple[int, str] | None


def _torch(name: str, kind: str, output: Any, input: Any = None) -> Target:
    return Target(f"torch.distributed.{name}", kind, output, input)


TORCH_TARGETS = (
    _torch(
        "all_gather_into_tensor",
        "all_gather",
        (0, "output_tensor"),
        (1, "input_tensor"),
    ),
    _torch(
        "all_gather_single", "all_gather", (0, "output_tensor"), (1, "input_tensor")
    ),
    _torch("all_gather", "all_gather", (0, "tensor_list"), (1, "tensor")),
    _torch("all_reduce", "all_reduce", (0, "tensor"), (0, "tensor")),
    _torch("reduce_scatter_tensor", "reduce_scatter", (0, "output"), (1, "input")),
    _torch("reduce_scatter_single", "reduce_scatter", (0, "output"), (1, "input")),
    _torch("reduce_scatter", "reduce_scatter", (0, "output")),
    _torch("all_to_all_single", "all_to_all", (0, "output"), (1, "input")),
    _torch("all_to_all", "all_to_all", (0, "output_tensor_list")),
    _torch("broadcast", "broadcast", (0, "tensor"), (0, "tensor")),
    _torch("gather", "gather", (1, "gather_list"), (0, "tensor")),
    _torch("scatter", "scatter", (0, "tensor")),
    _torch("send", "send", (0, "tensor"), (0, "tensor")),
    _torch("isend", "send", (0, "tensor"), (0, "tensor")),
    _torch("recv", "recv", (0, "tensor"), (0, "tensor")),
    _torch("irecv", "recv", (0, "tensor"), (0, "tensor")),
    _torch("broadcast_object_list", "object", None),
    _torch("all_gather_object", "object", None),
    _torch("gather_object", "object", None),
    _torch("barrier", "barrier", None),
)

_COMM = "sglang.srt.distributed.device_communicators."
_NCCL = _COMM + "pynccl.PyNcclCommunicator."
_NVLINK = "sglang.kernels.ops.communication.nvlink_comm."

# Methods count `self` as position 0.
GPU_TARGETS = (
    Target(
        _NCCL + "all_gather", "all_gather", (1, "output_tensor"), (2, "input_tensor")
    ),
    Target(_NCCL + "all_reduce", "all_reduce", (1, "tensor"), (1, "tensor")),
    Target(_NCCL + "outplace_all_reduce", "all_reduce", RESULT, (1, "in_tensor")),
    Target(
        _NCCL + "reduce_scatter",
        "reduce_scatter",
        (1, "output_tensor"),
        (2, "input_tensor"),
    ),
    Target(_NCCL + "broadcast", "broadcast", (1, "tensor"), (1, "tensor")),
    Target(
        _NCCL + "all_to_all_single",
        "all_to_all",
        (1, "output_tensor"),
        (2, "input_tensor"),
    ),
    Target(_NCCL + "send", "send", (1, "tensor"), (1, "tensor")),
    Target(_NCCL + "recv", "recv", (1, "tensor"), (1, "tensor")),
    Target(_NVLINK + "all_gather_push", "all_gather", (2, "output"), (1, "input")),
    Target(_NVLINK + "all_gather_pull", "all_gather", (2, "output"), (1, "input")),
    Target(
        _COMM + "triton_symm_mem_ag.all_gather_inner",
        "all_gather",
        RESULT,
        (1, "hidden_states"),
    ),
    Target(
        _COMM + "custom_all_reduce.CustomAllreduce.custom_all_reduce",
        "all_reduce",
        RESULT,
        (1, "input"),
    ),
    Target(
        _COMM + "custom_all_reduce_v2.CustomAllReduceV2.custom_all_reduce",
        "all_reduce",
        RESULT,
        (1, "input"),
    ),
)

# Ops of the CPU kernel build; they exist only where it is installed.
SHM_TARGETS = (
    Target("shm_allgather", "all_gather", RESULT, (0, "input")),
    Target("shm_allreduce", "all_reduce", (0, "input"), (0, "input")),
)


def argument(place: tuple[int, str], args: tuple, kwargs: dict[str, Any]) -> Any:
    """The argument at a place, None when it was not given."""
    position, name = place
    return args[position] if position < len(args) else kwargs.get(name)


def nbytes(value: Any) -> int:
    """Bytes of a tensor or of a list of tensors, 0 for anything else."""
    if isinstance(value, (list, tuple)):
        return sum(nbytes(item) for item in value)
    return int(getattr(value, "nbytes", 0))
