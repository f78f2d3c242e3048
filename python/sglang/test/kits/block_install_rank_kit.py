"""Installs the packed path on DFlash and DSpark workers of a rank."""

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, Dict, List
from unittest.mock import patch

import torch

from sglang.srt.configs.draft_parallel import DraftParallelLayout
from sglang.srt.layers import vocab_parallel_draft_install
from sglang.srt.models.dspark import VanillaMarkov
from sglang.srt.speculative import vocab_parallel_block_install as block_install
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.dspark_components.dspark_worker_v2 import DSparkWorkerV2
from sglang.test.kits.block_draft_rank_kit import CountedGroup, head_shard

_ELIGIBILITY = "sglang.srt.layers.vocab_parallel_draft_eligibility"
VOCAB = 130


def installations(
    rank: int, world_size: int, cases: List[Dict[str, Any]]
) -> List[Dict[str, Any]]:
    """The status of every case's worker, and where the packed path was put."""
    group = CountedGroup(rank, world_size)
    return [_install(rank, world_size, group, **case) for case in cases]


def _install(
    rank: int,
    world_size: int,
    group: CountedGroup,
    algorithm: str,
    worker: Dict[str, Any] = {},
    head: Dict[str, Any] = {},
    broken_rank: int = -1,
    **configuration: Any,
) -> Dict[str, Any]:
    lm_head = head_shard(torch.ones(VOCAB, 8), rank, world_size)
    for name, value in head.items():
        setattr(lm_head, name, value)
    if rank == broken_rank:
        lm_head.weight = lm_head.weight[:1]
    spec_worker = {"DFLASH": _dflash, "DSPARK": _dspark}[algorithm](lm_head, worker)
    spec_worker.draft_parallel_layout = DraftParallelLayout(
        tp_group=None, attn_tp_size=world_size
    )
    with configured(group, algorithm, configuration):
        vocab_parallel_draft_install.install_vocab_parallel_draft(spec_worker)
    markov_head = getattr(spec_worker.__dict__.get("draft_model"), "markov_head", None)
    places = (
        spec_worker.__dict__.get("vocab_parallel_draft"),
        getattr(markov_head, "vocab_parallel_draft", None),
    )
    return {
        "status": spec_worker.vocab_parallel_draft_status,
        "places": [type(place).__name__ for place in places if place is not None],
    }


def configured(group: Any, algorithm: str, changed: Dict[str, Any]) -> ExitStack:
    """Flag and parallel sizes as the installation reads them."""
    parallel = dict(
        pp_size=1,
        pp_rank=0,
        attn_dp_size=1,
        enable_dp_lm_head=False,
        enable_tp_lm_head_all_to_all=False,
        tp_group=group,
        tp_rank=group.rank_in_group,
    )
    spec = dict(
        speculative_vocab_parallel_draft="on",
        speculative_algorithm=algorithm,
        # Block drafters are told these like any other, and read neither.
        speculative_eagle_topk=1,
        speculative_use_rejection_sampling=True,
    )
    for name, value in changed.items():
        (parallel if name in parallel else spec)[name] = value
    parallel, spec = SimpleNamespace(**parallel), SimpleNamespace(**spec)
    stack = ExitStack()
    for module in (
        _ELIGIBILITY,
        vocab_parallel_draft_install.__name__,
        block_install.__name__,
    ):
        stack.enter_context(patch(f"{module}.get_parallel", lambda: parallel))
    for module in (_ELIGIBILITY, vocab_parallel_draft_install.__name__):
        stack.enter_context(patch(f"{module}.get_spec", lambda: spec))
    return stack


def _dflash(lm_head: Any, changed: Dict[str, Any]) -> DFlashWorkerV2:
    worker = DFlashWorkerV2.__new__(DFlashWorkerV2)
    model = SimpleNamespace(lm_head=lm_head)
    attributes = dict(
        _target_worker=SimpleNamespace(model_runner=SimpleNamespace(model=model)),
        device="cpu",
        selector=None,
        lilicorr=None,
        _is_domino=False,
        domino_candidate_pool_size=16,
    )
    for name, value in (attributes | changed).items():
        setattr(worker, name, value)
    return worker


def _dspark(lm_head: Any, changed: Dict[str, Any]) -> DSparkWorkerV2:
    worker = DSparkWorkerV2.__new__(DSparkWorkerV2)
    changed = dict(changed)
    markov = VanillaMarkov(vocab_size=changed.pop("markov_vocab", VOCAB), markov_rank=4)
    if changed.pop("pruned", False):
        markov = None
    model = torch.nn.Module()
    model.lm_head, model.markov_head = lm_head, markov
    if changed.pop("megakernel", False):
        model._megakernel = SimpleNamespace(draft_sampler=len)
    attributes = dict(
        _target_worker=SimpleNamespace(),
        device="cpu",
        draft_model=model,
        draft_model_runner=SimpleNamespace(dtype=torch.float32),
        _greedy_draft=True,
    )
    for name, value in (attributes | changed).items():
        setattr(worker, name, value)
    return worker
