"""What a rank does in the tests of the draft's choices over real process groups."""

from types import SimpleNamespace
from typing import Any, List, Tuple

import torch.distributed as dist

from sglang.srt.environ import envs
from sglang.srt.layers.vocab_parallel_draft_table import Setting, agreed_choice


def choice_on_rank(
    rank: int, world_size: int, paths: List[str], width: int
) -> Tuple[str, Any, str]:
    """Packed rows, reason and error of this rank, each rank with a path of its own."""

    def broadcast_object(value: Any, src: int) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=src)
        return box[0]

    group = SimpleNamespace(rank_in_group=rank, broadcast_object=broadcast_object)
    setting = Setting("gloo", 4, "a CPU", "bfloat16", width)
    with envs.SGLANG_VOCAB_PARALLEL_DRAFT_TABLE.override(paths[rank]):
        try:
            choice = agreed_choice(group, setting)
        except ValueError as error:
            return "", None, str(error)
    reason = choice.reason and choice.reason.value
    return str(choice.packed_rows or ""), reason, ""
