"""What block drafters and their dense units need on a rank of a test group."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Tuple
from unittest.mock import patch

import torch

from sglang.srt.distributed.device_communicators.vocab_gather import make_vocab_gather
from sglang.srt.distributed.parallel_state import init_model_parallel_group
from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding
from sglang.srt.speculative.vocab_parallel_shard_winners import ShardWinners
from sglang.test.kits.gloo_ranks_kit import take_cpu_paths

_PADDING = 64


class CountedGroup:
    """SGLang's group coordinator over gloo that notes what goes through it."""

    METHODS = ("all_gather", "all_gather_into_tensor", "all_reduce", "broadcast")

    def __init__(self, rank: int, world_size: int):
        take_cpu_paths()
        self._group = init_model_parallel_group(
            [list(range(world_size))],
            local_rank=rank,
            backend="gloo",
            use_pynccl=False,
            use_custom_allreduce=False,
            use_mscclpp=False,
            use_torch_symm_mem_allreduce=False,
        )
        self.calls: List[Tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._group, name)
        if name not in self.METHODS:
            return method

        def counted(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            output = args[0] if result is None else result
            kind = "all_gather" if "gather" in name else name
            self.calls.append((kind, output.nbytes))
            return result

        return counted

    def taken(self) -> Dict[str, Tuple[int, int]]:
        """Calls and output bytes of every kind since the last time."""
        totals: Dict[str, Tuple[int, int]] = {}
        for kind, nbytes in self.calls:
            count, total = totals.get(kind, (0, 0))
            totals[kind] = count + 1, total + nbytes
        self.calls = []
        return totals


def padded_vocab(vocab: int, world_size: int) -> int:
    return -(-vocab // (_PADDING * world_size)) * _PADDING * world_size


def head_shard(weight: torch.Tensor, rank: int, world_size: int) -> SimpleNamespace:
    """This rank's LM head of a whole ``weight`` ``[vocab, hidden]``; its padding rows
    would win if anything read them."""
    vocab = weight.shape[0]
    padded = padded_vocab(vocab, world_size)
    shard = VocabParallelEmbedding._get_indices(
        padded, padded, vocab, vocab, rank, world_size
    )
    local = weight.new_full((padded // world_size, weight.shape[1]), 1e4)
    rows = weight[shard.org_vocab_start_index : shard.org_vocab_end_index]
    local[: rows.shape[0]] = rows
    return SimpleNamespace(
        weight=local,
        shard_indices=shard,
        tp_size=world_size,
        num_embeddings=vocab,
        org_vocab_size=vocab,
        embedding_dim=weight.shape[1],
        num_embeddings_per_partition=padded // world_size,
        num_embeddings_padded=padded,
        num_added_embeddings=0,
        quant_method=None,
    )


def shard_winners(head: Any, group: Any, vocab_size: int) -> ShardWinners:
    gather = make_vocab_gather(group, local_width=4, symm_rows=0)
    return ShardWinners(head, vocab_size, gather, "gloo")


def numbers(
    shape: Tuple[int, ...], dtype: torch.dtype, seed: int, whole: bool
) -> torch.Tensor:
    """The same on every rank. ``whole``: small integers, whose products are exact and
    often equal."""
    generator = torch.Generator().manual_seed(seed)
    if whole:
        return torch.randint(-2, 3, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


@contextmanager
def parallel_of(module: str, group: Any) -> Iterator[None]:
    """``get_parallel()`` of a module knows this group alone."""
    parallel = SimpleNamespace(tp_group=group, tp_rank=group.rank_in_group)
    with patch(f"{module}.get_parallel", lambda: parallel):
        yield


class Replay:
    """Stands in for a captured graph: a tail hook over input buffers that stay.

    Every replay runs the hook on all rows of the captured batch; the rows past the real
    batch hold what an earlier one left or what the test wrote.
    """

    def __init__(self, hook: Any, hidden_states: torch.Tensor, ids: torch.Tensor):
        self.hook = hook
        self.hidden_states = hidden_states
        self.ids = ids

    def __call__(self, hidden_states: torch.Tensor, ids: torch.Tensor) -> None:
        from sglang.srt.layers.logits_processor import LogitsProcessorOutput

        self.hidden_states[: hidden_states.shape[0]] = hidden_states
        self.ids[: ids.shape[0]] = ids
        output = LogitsProcessorOutput(
            next_token_logits=None, hidden_states=self.hidden_states
        )
        self.hook(None, output, SimpleNamespace(input_ids=self.ids), len(self.ids))
