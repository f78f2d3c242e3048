"""A draft head under data-parallel attention, in real gloo groups.

Every rank has rows of its own, or shares them with its attention-TP group. The same
hidden states go through the same head, densely and then packed.

Two dense paths of SGLang do not run on gloo: the gather over an attention-TP group asks
for another shape than the group gives, and the all-to-all has no CPU operator. Their
logits are made here by a plain gather of the same shards.
"""

import os
from types import SimpleNamespace
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np
import torch

from sglang.srt.distributed.parallel_state import (
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
)
from sglang.srt.layers import vocab_parallel_draft_install
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context, get_flags, get_parallel
from sglang.test.kits.gloo_ranks_kit import take_cpu_paths

VOCAB, HIDDEN = 1024, 32


class Layout(NamedTuple):
    """``dp`` attention replicas; the head over an attention-TP group
    (``dp_lm_head``) or over all ranks, there also with the all-to-all exchange."""

    dp: int
    dp_lm_head: bool = False
    all_to_all: bool = False
    k: int = 1


def head_on_rank(
    rank: int, world_size: int, layout: Layout, batches: List[Tuple[int, ...]]
) -> Dict[str, Any]:
    """Status of the packed path, and the outputs of each batch: ``batches`` hold the
    rows of every replica."""
    # A CUDA build of torch brings NCCL, which would be tried on CPU groups.
    os.environ["SGLANG_NCCL_SO_PATH"] = "/nonexistent"
    take_cpu_paths()
    init_distributed_environment(world_size, rank, local_rank=rank, backend="gloo")
    attn_tp = world_size // layout.dp
    replica = rank // attn_tp
    flags = dict(
        speculative_vocab_parallel_draft="on",
        speculative_algorithm="EAGLE",
        speculative_eagle_topk=layout.k,
        tp_size=world_size,
        attn_dp_size=layout.dp,
        device="cpu",
        enable_dp_lm_head=layout.dp_lm_head,
        enable_tp_lm_head_all_to_all=layout.all_to_all,
    )
    widths = dict(
        tp_rank=rank,
        pp_rank=0,
        attn_dp_size=layout.dp,
        attn_dp_rank=replica,
        attn_tp_size=attn_tp,
        attn_tp_rank=rank % attn_tp,
        attn_cp_rank=0,
    )
    with (
        get_context().override_server_args(**flags),
        get_parallel().override(**widths),
    ):
        initialize_model_parallel(backend="gloo")
        buffers = get_flags().dp
        buffers.enabled, buffers.buffer_hidden_size = True, HIDDEN
        buffers.buffer_dtype = torch.float32
        buffers.buffer_device = torch.device("cpu")
        try:
            return _outputs_of_batches(replica, layout, batches)
        finally:
            destroy_model_parallel()


def _outputs_of_batches(
    replica: int, layout: Layout, batches: List[Tuple[int, ...]]
) -> Dict[str, Any]:
    config = SimpleNamespace(vocab_size=VOCAB)
    model = SimpleNamespace(
        logits_processor=LogitsProcessor(config),
        lm_head=make_head(layout),
        hot_token_id=None,
    )
    runner = SimpleNamespace(model=model, dtype=torch.float32, device="cpu")
    worker = SimpleNamespace(vocab_parallel_draft=None, draft_runners=[runner])
    spec_worker = SimpleNamespace(draft_worker=worker)
    dense = [_dense(model, replica, layout, counts) for counts in batches]
    vocab_parallel_draft_install.install_vocab_parallel_draft(spec_worker)
    return {
        "status": spec_worker.vocab_parallel_draft_status,
        "dense": dense,
        "packed": _packed_batches(model, replica, spec_worker, batches),
    }


def _packed_batches(
    model: SimpleNamespace,
    replica: int,
    spec_worker: SimpleNamespace,
    batches: List[Tuple[int, ...]],
) -> List[Dict[str, np.ndarray]]:
    """None where the head drafts densely."""
    if spec_worker.vocab_parallel_draft_status["path"] == "dense":
        return []
    return [_packed(model, replica, counts) for counts in batches]


def make_head(layout: Layout) -> ParallelLMHead:
    """Rows of the same global weight on every rank."""
    head = ParallelLMHead(
        VOCAB,
        HIDDEN,
        params_dtype=torch.float32,
        use_attn_tp_group=layout.dp_lm_head,
    )
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(VOCAB, HIDDEN, generator=generator)
    shard = head.shard_indices
    rows = weight[shard.org_vocab_start_index : shard.org_vocab_end_index]
    head.weight.data[: len(rows)] = rows
    return head


def _batch(
    replica: int, counts: Tuple[int, ...]
) -> Tuple[torch.Tensor, LogitsMetadata]:
    """Hidden states of this replica's rows, and where they are among all rows."""
    generator = torch.Generator().manual_seed(sum(counts))
    states = torch.randn(sum(counts), HIDDEN, generator=generator)
    start = sum(counts[:replica])
    idle = counts[replica] == 0
    metadata = LogitsMetadata(
        forward_mode=ForwardMode.IDLE if idle else ForwardMode.DECODE,
        global_num_tokens_gpu=torch.tensor(counts),
        global_num_tokens_for_logprob_cpu=list(counts),
        global_num_tokens_for_logprob_gpu=torch.tensor(counts),
    )
    own = states[start : start + counts[replica]].clone()
    return own, metadata


def _dense(
    model: SimpleNamespace, replica: int, layout: Layout, counts: Tuple[int, ...]
) -> np.ndarray:
    """Gathered logits ``[rows, VOCAB]`` of this replica's rows."""
    own, metadata = _batch(replica, counts)
    processor = model.logits_processor
    if layout.dp_lm_head:
        logits = processor._compute_lm_head(own, model.lm_head)
        if len(own) and logits.shape[-1] < VOCAB:
            logits = get_parallel().attn_tp_group.all_gather(logits, dim=-1)
        return logits.float().numpy().reshape(-1, VOCAB)
    processor.use_tp_lm_head_all_to_all = False
    try:
        output = processor(None, own, model.lm_head, metadata)
    finally:
        processor.use_tp_lm_head_all_to_all = layout.all_to_all
    return output.next_token_logits.float().numpy()


def _packed(
    model: SimpleNamespace, replica: int, counts: Tuple[int, ...]
) -> Dict[str, np.ndarray]:
    """Fields of this replica's rows."""
    own, metadata = _batch(replica, counts)
    output = model.logits_processor(None, own, model.lm_head, metadata)
    fields = {"next_token_logits": output.next_token_logits.float()}
    fields |= output.draft_fields(slice(None))
    return {name: field.numpy() for name, field in fields.items()}
