"""What a rank does in the tests of draft heads: real heads in a real TP group.

Every case installs the packed path as the scheduler does, then runs the same hidden
states through the same logits processor with and without it.
"""

import os
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch

from sglang.srt.distributed.parallel_state import (
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
)
from sglang.srt.layers import vocab_parallel_draft_install
from sglang.srt.layers.dense_logsumexp import DenseLogsumexp, shards_of
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.speculative.adaptive_confidence import Estimator, choose_steps
from sglang.srt.speculative.draft_confidence import selected_probability
from sglang.test.kits.gloo_ranks_kit import take_cpu_paths

VOCAB, DRAFT_VOCAB, HIDDEN, ROWS = 1003, 500, 32, 9
SCALE, SOFTCAP = 0.5, 3.0
PROMPTS = (5, 4)


@dataclass(frozen=True)
class HeadCase:
    """A draft head, and what its logits processor does besides.

    ``kind``: a head of its own (``own``), the embedding (``tied``), the target's
    module (``shared``), or ``quantised``.
    """

    kind: str = "own"
    vocab_size: int = VOCAB
    added_tokens: int = 0
    dtype: torch.dtype = torch.float32
    fp32: bool = False
    scale: Optional[float] = None
    softcap: Optional[float] = None


class RowScaledMethod:
    """int8 weights with a scale a row: the raw weight alone gives other logits."""

    def create_weights(self, layer, input_size, output_sizes, *args, **kwargs):
        size = (sum(output_sizes), input_size)
        weight = torch.nn.Parameter(torch.zeros(size, dtype=torch.int8), False)
        layer.register_parameter("weight", weight)
        layer.register_buffer("row_scale", torch.ones(size[0], 1))

    def apply(self, layer, x, bias=None):
        return x @ (layer.weight.float() * layer.row_scale).to(x.dtype).T


class RowScaled:
    """A quantisation config of that one method."""

    def get_quant_method(self, layer, prefix=""):
        return RowScaledMethod()


def heads_on_rank(
    rank: int, world_size: int, cases: List[List[HeadCase]]
) -> List[Dict[str, Any]]:
    """For each draft worker (a list of heads): its status, and per head what
    ``outputs`` returns."""
    sizes = dict(tp_size=world_size, device="cpu")
    # A CUDA build of torch brings NCCL, which would be tried on CPU groups.
    os.environ["SGLANG_NCCL_SO_PATH"] = "/nonexistent"
    take_cpu_paths()
    init_distributed_environment(world_size, rank, local_rank=rank, backend="gloo")
    flags = dict(
        speculative_vocab_parallel_draft="on",
        speculative_algorithm="EAGLE",
        speculative_eagle_topk=1,
    )
    with (
        get_context().override_server_args(**flags, **sizes),
        get_parallel().override(tp_rank=rank, pp_rank=0),
    ):
        initialize_model_parallel(backend="gloo")
        try:
            return [_worker_results(heads) for heads in cases]
        finally:
            destroy_model_parallel()


def _worker_results(cases: List[HeadCase]) -> Dict[str, Any]:
    runners = [draft_runner(case, seed) for seed, case in enumerate(cases)]
    if cases[0].kind == "shared":
        # The target's module, in every draft model.
        for runner in runners:
            runner.model.lm_head = runners[0].model.lm_head
    worker = SimpleNamespace(vocab_parallel_draft=None, draft_runners=runners)
    if runners[0].model.hot_token_id is not None:
        worker.hot_token_id = runners[0].model.hot_token_id
    spec_worker = SimpleNamespace(draft_worker=worker)
    dense = [outputs(runner) for runner in runners]
    confident, confident_prefill = (
        [confident_outputs(runner, prompts) for runner in runners]
        for prompts in ((), PROMPTS)
    )
    vocab_parallel_draft_install.install_vocab_parallel_draft(spec_worker)
    return {
        "status": spec_worker.vocab_parallel_draft_status,
        "dense": dense,
        "confident": confident,
        "confident_prefill": confident_prefill,
        "packed": [outputs(runner) for runner in runners],
        "packed_prefill": [
            outputs(runner, PROMPTS)
            for runner in runners
            if worker.vocab_parallel_draft is not None
        ],
    }


def draft_runner(case: HeadCase, seed: int) -> SimpleNamespace:
    """What the installation reads of a ``ModelRunner``, around a real head."""
    config = SimpleNamespace(
        vocab_size=case.vocab_size,
        final_logit_softcapping=case.softcap,
        enable_lm_head_fp32=case.fp32,
    )
    table = None
    if case.vocab_size == DRAFT_VOCAB:
        table = torch.arange(DRAFT_VOCAB) * 2 + 1
    model = SimpleNamespace(
        logits_processor=LogitsProcessor(config, logit_scale=case.scale),
        lm_head=make_head(case, seed),
        hot_token_id=table,
    )
    return SimpleNamespace(model=model, dtype=case.dtype, device="cpu")


def make_head(case: HeadCase, seed: int) -> VocabParallelEmbedding:
    """Rows of the same global weight on every rank; padding rows hold 1e4."""
    head_class = VocabParallelEmbedding if case.kind == "tied" else ParallelLMHead
    head = head_class(
        case.vocab_size + case.added_tokens,
        HIDDEN,
        org_num_embeddings=case.vocab_size,
        params_dtype=case.dtype,
        quant_config=RowScaled() if case.kind == "quantised" else None,
    )
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(case.vocab_size, HIDDEN, generator=generator)
    shard = head.shard_indices
    rows = weight[shard.org_vocab_start_index : shard.org_vocab_end_index]
    if case.kind == "quantised":
        largest = rows.abs().amax(dim=1, keepdim=True)
        rows = torch.round(rows / largest * 127)
        head.row_scale[: len(rows)] = largest / 127
        head.row_scale[len(rows) :] = 100.0
        head.weight.data.fill_(100)
    else:
        head.weight.data.fill_(1e4)
    head.weight.data[: len(rows)] = rows.to(head.weight.dtype)
    return head


def outputs(
    runner: SimpleNamespace, prompts: Sequence[int] = ()
) -> Dict[str, np.ndarray]:
    """``next_token_logits``, FP32, and where they are there the packed fields.

    With ``prompts`` (lengths, ``ROWS`` tokens in all) the rows are those of a prefill
    whose requests ask for the logprobs of all their tokens.
    """
    generator = torch.Generator().manual_seed(77)
    states = torch.randn(ROWS, HIDDEN, generator=generator).to(runner.dtype)
    metadata = LogitsMetadata(forward_mode=ForwardMode.DECODE)
    if prompts:
        metadata = LogitsMetadata(
            forward_mode=ForwardMode.EXTEND,
            extend_return_logprob=True,
            extend_seq_lens=torch.tensor(prompts),
            extend_seq_lens_cpu=list(prompts),
            extend_logprob_start_lens_cpu=[0] * len(prompts),
            extend_input_logprob_token_ids_gpu=torch.zeros(ROWS, dtype=torch.int64),
        )
    model = runner.model
    output = model.logits_processor(None, states, model.lm_head, metadata)
    fields = {"next_token_logits": output.next_token_logits.float()}
    fields |= output.draft_fields(slice(None))
    return {name: field.numpy() for name, field in fields.items()}


def confident_outputs(
    runner: SimpleNamespace, prompts: Sequence[int] = ()
) -> Dict[str, np.ndarray]:
    """``outputs`` of the dense path where probabilities are collected."""
    model = runner.model
    model.logits_processor.draft_logsumexp = DenseLogsumexp(shards_of(model.lm_head))
    try:
        return outputs(runner, prompts)
    finally:
        model.logits_processor.draft_logsumexp = None


def decisions(fields: Dict[str, np.ndarray], steps: int = 3) -> List[Any]:
    """What the adaptive policy makes of an output's best tokens, taken as chains of
    ``steps``: the survival that it expects and the steps that it chooses, chain after
    chain."""
    best = torch.from_numpy(fields["next_token_logits"]).amax(-1)
    logsumexp = torch.from_numpy(fields["logits_logsumexp"])
    chains = selected_probability(best, logsumexp).view(-1, 1, steps)
    estimator, decided = Estimator(steps), []
    for correct, chain in enumerate(chains.tolist()):
        estimator.observe(chain, [correct % (steps + 1)], chain[0][:1])
        survival = estimator.survival()
        decided.append((survival, choose_steps(range(steps + 1), survival, 0.3)))
    return decided
