"""A test double of SGLang's NVLink push plane, and ranks that draft over it.

Rules that it keeps, as the kernel and its host checks have them: a word of all zero bits
means "not there yet", so that a sender turns it into 0x80000000; rows of a multiple of
16 bytes; at most one slot a rank; two epochs in turn, polled and then cleared by the
reader. It lies in memory that the ranks' processes share. It proves the logic around the
plane, not the kernel, its memory ordering or its capture: those need GPUs.
"""

import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, Dict, List, Tuple
from unittest.mock import patch

import torch
from torch import nn

from sglang.kernels.ops.communication import nvlink_comm
from sglang.srt.distributed.parallel_state import init_model_parallel_group
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.vocab_parallel_draft_install import (
    install_vocab_parallel_draft,
)
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.test.kits.graph_replay_kit import HIDDEN, VOCAB, sixteenths
from sglang.test.kits.shard_winner_kit import (
    Selection,
    assert_matches_reference,
    even_bounds,
    reference_selection,
)

_NEGATIVE_ZERO = torch.iinfo(torch.int32).min


class PushPlane:
    """One rank's end of the plane in the shared file ``path``."""

    def __init__(
        self, path: str, rank: int, world_size: int, slot_bytes: int, timeout_s: float
    ):
        self.rank, self.world_size = rank, world_size
        self.slot_bytes, self.timeout_s = slot_bytes, timeout_s
        region = world_size * slot_bytes // 4
        size = 2 * world_size * region
        words = torch.from_file(path, shared=True, size=size, dtype=torch.int32)
        self.regions = words.view(2, world_size, region)
        self.epoch = self.pushes = 0

    def all_gather(self, local: torch.Tensor, out: torch.Tensor) -> None:
        """``local`` of every rank into ``out``, in rank order."""
        if local.dtype != torch.float32 or not local.is_contiguous():
            raise ValueError("the plane moves contiguous FP32")
        if local.shape[1] * 4 % 16 or local.nbytes > self.slot_bytes:
            raise ValueError(f"{tuple(local.shape)} does not fit a slot in 16 bytes")
        words = local.view(torch.int32).flatten()
        words = torch.where(words == 0, _NEGATIVE_ZERO, words)
        regions, count = self.regions[self.epoch], words.numel()
        for region in regions:
            region[self.rank * count : (self.rank + 1) * count] = words
        own = regions[self.rank, : self.world_size * count]
        deadline = time.monotonic() + self.timeout_s
        while not own.all():
            if time.monotonic() > deadline:
                raise TimeoutError("a rank did not push")
            time.sleep(0)
        out.view(torch.int32).flatten().copy_(own)
        own.zero_()
        self.epoch ^= 1
        self.pushes += 1


class ShardHead(nn.Module):
    def __init__(self, weight: torch.Tensor, rank: int, world_size: int):
        super().__init__()
        start, end = even_bounds(VOCAB, world_size)[rank]
        width = -(-VOCAB // world_size)
        shard = weight.new_full((width, HIDDEN), 99.0)
        shard[: end - start] = weight[start:end]
        self.weight = nn.Parameter(shard, requires_grad=False)
        self.tp_size, self.embedding_dim = world_size, HIDDEN
        self.num_embeddings = self.org_vocab_size = VOCAB
        self.shard_indices = SimpleNamespace(
            num_elements_padded=width,
            padded_org_vocab_start_index=rank * width,
            org_vocab_start_index=start,
            org_vocab_end_index=end,
        )


def push_communicator(setup: str, plane: PushPlane) -> Any:
    """A rank's custom all-reduce: with a plane, without one, or one that fails."""
    if setup == "none":
        return None
    comm = SimpleNamespace(push=plane, pull=None, world_size=plane.world_size)
    ca_comm = SimpleNamespace(
        disabled=False,
        obj=comm,
        has_multicast=True,
        max_push_size=plane.slot_bytes // (2 if setup == "half a slot" else 1),
    )
    if setup == "cannot be built":
        del ca_comm.max_push_size
    return ca_comm


def draft_rounds(
    rank: int,
    world_size: int,
    plane_file: str,
    setups: List[str],
    slot_bytes: int,
    row_counts: List[int],
    delay_s: float = 0.0,
) -> Dict[str, Any]:
    """Install the packed path over this rank's ``setups[rank]``, then draft in rounds.

    Returns:
        The path's status, rounds pushed, and the rounds whose result was wrong at the
        end: a result that a later round overwrote counts.
    """
    plane = PushPlane(plane_file, rank, world_size, slot_bytes, timeout_s=30)
    group = init_model_parallel_group(
        [list(range(world_size))],
        rank,
        "gloo",
        use_pynccl=False,
        use_custom_allreduce=False,
        group_name="tp",
    )
    group.ca_comm = push_communicator(setups[rank], plane)

    def load(dtype, world_size):
        if setups[rank] == "no kernel":
            raise RuntimeError("planted: the push kernel does not compile")

    def push(comm, local, out, residual=None):
        comm.push.all_gather(local, out)

    with ExitStack() as stack:
        stack.enter_context(patch.object(nvlink_comm, "_jit_push_module", load))
        stack.enter_context(patch.object(nvlink_comm, "all_gather_push", push))
        config = dict(
            tp_size=world_size,
            speculative_algorithm="EAGLE",
            speculative_vocab_parallel_draft="on",
            speculative_eagle_topk=1,
        )
        stack.enter_context(get_context().override_server_args(**config))
        ranks = dict(tp_group=group, tp_rank=rank, pp_rank=0)
        stack.enter_context(get_parallel().override(**ranks))
        generator = torch.Generator().manual_seed(3)
        weight = sixteenths(torch.randn(VOCAB, HIDDEN, generator=generator))
        worker = spec_worker(ShardHead(weight, rank, world_size))
        install_vocab_parallel_draft(worker)
        wrong = []
        if worker.vocab_parallel_draft_status["path"] == "packed":
            wrong = _wrong_rounds(worker, weight, row_counts, delay_s, rank, world_size)
    return dict(
        status=worker.vocab_parallel_draft_status, pushes=plane.pushes, wrong=wrong
    )


def spec_worker(head: ShardHead) -> SimpleNamespace:
    """What the installation reads of a spec worker."""
    processor = LogitsProcessor(SimpleNamespace(vocab_size=VOCAB))
    model = SimpleNamespace(lm_head=head, logits_processor=processor)
    runner = SimpleNamespace(model=model, device="cpu", dtype=torch.float32)
    draft_worker = SimpleNamespace(
        vocab_parallel_draft=None,
        hot_token_id=None,
        draft_runner=runner,
        draft_runners=[runner],
    )
    return SimpleNamespace(draft_worker=draft_worker)


def _wrong_rounds(
    worker: Any,
    weight: torch.Tensor,
    row_counts: List[int],
    delay_s: float,
    rank: int,
    world_size: int,
) -> List[int]:
    model = worker.draft_worker.draft_runner.model
    packed = worker.draft_worker.vocab_parallel_draft
    results: List[Tuple[Selection, Selection]] = []
    for turn, rows in enumerate(row_counts):
        if delay_s and turn % 10 == 0 and rank == turn // 10 % world_size:
            time.sleep(delay_s)
        generator = torch.Generator().manual_seed(turn)
        states = sixteenths(torch.randn(rows, HIDDEN, generator=generator))
        # All logits zero: id 0, value 0, both words all zero bits.
        states[:1] = 0
        output = packed.logits_output(model.logits_processor, states, model.lm_head)
        actual = Selection(
            output.logits_token_ids,
            output.next_token_logits.squeeze(-1),
            output.logits_logsumexp,
        )
        results.append((actual, reference_selection(states @ weight.T)))
    return [turn for turn, pair in enumerate(results) if not _matches(*pair)]


def _matches(actual: Selection, expected: Selection) -> bool:
    try:
        assert_matches_reference(actual, expected)
    except AssertionError:
        return False
    return True
