"""Runs SGLang's CUDA graph runners on the CPU, with a stub of capture and replay.

The stub keeps what the runners' Python relies on: a captured shape has one output
object whose storage every replay of that shape overwrites. It runs the captured
function again instead of a recorded graph, so that it proves nothing about capture
itself (host syncs, allocations, Python that is frozen); those are GPU tests.
"""

import contextlib
from types import SimpleNamespace
from typing import Any, Callable, Dict, Optional, Tuple
from unittest.mock import patch

import torch
from torch import nn

from sglang.srt.configs.shared_experts import SharedExpertsConfig
from sglang.srt.distributed.device_communicators.vocab_gather import (
    LocalVocabGather,
)
from sglang.srt.layers.attention.base_attn_backend import SharedReadEnds
from sglang.srt.layers.logits_processor import LogitsProcessor, LogitsProcessorOutput
from sglang.srt.layers.vocab_parallel_draft import VocabParallelDraft
from sglang.srt.model_executor.runner_backend.base_cuda_graph_backend import (
    BaseCudaGraphBackend,
)
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.test.kits.shard_winner_kit import Selection, assert_matches_reference

VOCAB = 131
HIDDEN = 16
CAPTURED_SIZES = (1, 2, 4, 8)


def overwrite(stored: Any, new: Any) -> None:
    """Copy every tensor of ``new`` into the storage of its place in ``stored``."""
    if torch.is_tensor(stored):
        stored.copy_(new)
    elif isinstance(stored, (list, tuple)):
        for old, item in zip(stored, new, strict=True):
            overwrite(old, item)
    elif hasattr(stored, "__dict__"):
        for name, old in vars(stored).items():
            overwrite(old, getattr(new, name))


class ReplayBackend(BaseCudaGraphBackend):
    """Stub of capture and replay; see the module's docstring."""

    def __init__(self, runner: Any = None):
        self.captured: Dict[Any, Tuple[Callable[[], Any], Any]] = {}

    def capture_session(self, stream):
        return contextlib.nullcontext()

    def capture_one(
        self,
        shape_key: Any,
        forward_fn: Callable[[], Any],
        capture_inputs: Optional[Any] = None,
        post_warmup_hook: Optional[Callable[[], None]] = None,
    ) -> None:
        self.captured[shape_key] = (forward_fn, forward_fn())

    def can_run(self, forward_batch, shape_key) -> bool:
        return shape_key in self.captured

    def replay_session(self):
        return contextlib.nullcontext()

    def replay(self, shape_key: Any, static_forward_batch: Any, **kwargs) -> Any:
        forward_fn, output = self.captured[shape_key]
        overwrite(output, forward_fn())
        return output

    def cleanup(self) -> None:
        self.captured.clear()


class AttentionStub:
    """An attention backend without attention: rows do not see each other."""

    supports_draft_extend_metadata_staging = False

    def __init__(self):
        self.attn_backends = [self] * 8

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None: ...

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None: ...

    def init_forward_metadata_out_graph(
        self, forward_batch: Any, in_capture: bool = False
    ) -> None: ...

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def shared_read_ends(self, forward_mode: Any) -> SharedReadEnds:
        return SharedReadEnds.UNKNOWN

    def draft_extend_metadata_captured_in_graph(self) -> bool:
        return False


class WholeHead(nn.Module):
    """An LM head of one rank; the gather over ranks is tested elsewhere."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.shard_indices = SimpleNamespace(
            org_vocab_start_index=0, org_vocab_end_index=weight.shape[0]
        )


def sixteenths(values: torch.Tensor) -> torch.Tensor:
    return torch.round(values * 16) / 16


class DraftModel(nn.Module):
    """One row in, one row out: next state from token, position and hidden state."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        # Sixteenths: a product rounds nowhere, whatever the number of rows.
        self.weight = sixteenths(torch.randn(VOCAB, HIDDEN, generator=generator))
        self.embedding = torch.randn(VOCAB, HIDDEN, generator=generator)
        self.shared_experts_config = SharedExpertsConfig()
        config = SimpleNamespace(vocab_size=VOCAB)
        self.logits_processor = LogitsProcessor(config)
        self.lm_head = WholeHead(self.weight)
        self.packed = VocabParallelDraft(
            self.logits_processor, self.lm_head, LocalVocabGather(), "local"
        )
        self.logits_processor.vocab_parallel_draft = self.packed

    def states(self, input_ids, positions, hidden_states) -> torch.Tensor:
        # Raises on an id outside the vocabulary, where a kernel would fault.
        embedded = self.embedding[input_ids]
        states = embedded + positions.unsqueeze(-1) * 0.01 + 0.5 * hidden_states
        return sixteenths(torch.tanh(states))

    def forward(self, input_ids, positions, forward_batch, **kwargs):
        states = self.states(
            input_ids, positions, forward_batch.spec_info.hidden_states
        )
        return self.logits_processor(input_ids, states, self.lm_head, forward_batch)


def poison_output(output: Any) -> None:
    """Fill captured storage with what must never reach a result."""
    for tensor in vars(output).values():
        if torch.is_tensor(tensor):
            tensor.fill_(float("nan") if tensor.is_floating_point() else -(2**40))


def assert_selection(output: LogitsProcessorOutput, expected: Selection) -> None:
    """The three fields of a packed output are those of ``expected``, row for row."""
    logits = output.next_token_logits.squeeze(-1)
    actual = Selection(output.logits_token_ids, logits, output.logits_logsumexp)
    assert_matches_reference(actual, expected)


def model_runner(model: DraftModel) -> SimpleNamespace:
    """What the graph runners read of a ``ModelRunner``."""
    hf_config = SimpleNamespace(architectures=["DraftModel"])
    config = SimpleNamespace(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        spec_hidden_size=HIDDEN,
        dtype=torch.float32,
        hf_config=hf_config,
        model_is_mrope=False,
    )
    return SimpleNamespace(
        device="cpu",
        gpu_id=0,
        dtype=torch.float32,
        model=model,
        model_config=config,
        spec_algorithm=SpeculativeAlgorithm.EAGLE,
        is_draft_worker=True,
        canary_manager=None,
        device_timer=None,
        shared_read_done_event=None,
        req_to_token_pool=SimpleNamespace(size=max(CAPTURED_SIZES)),
        kv_index_translator=SimpleNamespace(bind_runner_slots=lambda batch: None),
        graph_shared_output=SimpleNamespace(
            get_logits_buffer=lambda vocab, rows: torch.zeros(rows, vocab)
        ),
    )


@contextlib.contextmanager
def replay_stub(module: Any, **config):
    """Publishes ``config`` and stubs capture and replay in a runner's ``module``."""
    sizes = (list(CAPTURED_SIZES), [])
    stack = contextlib.ExitStack()
    with stack:
        stack.enter_context(get_context().override_server_args(**config))
        stack.enter_context(get_parallel().override(tp_rank=0, attn_cp_size=1))
        stack.enter_context(
            patch.object(module, "get_batch_sizes_to_capture", lambda *a, **k: sizes)
        )
        stack.enter_context(
            patch.object(module, "resolve_decode_backend", ReplayBackend)
        )
        yield


def captures_each_size(runner_class: type) -> type:
    """``runner_class`` without what surrounds a capture on a GPU (streams, pools)."""

    class Captures(runner_class):
        def capture(self) -> None:
            for size in reversed(self.capture_bs):
                self.capture_one_shape(size, None)

    return Captures
