"""The SGLang plugin: hooks on the three drafting sites and on the draft's forward."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from draft_recorder.events import CHAIN, EXTEND, SEED, Event, EventFile, Forward

ENV_DIR = "VPDRAFT_RECORDER_DIR"
# What the packed path's modules have in their names.
PACKED_NAMES = (
    "vocab_parallel_draft",
    "shard_winner",
    "draft_confidence",
    "chain_confidence",
    "adaptive_confidence",
    "dense_logsumexp",
)
_WORKER = "sglang.srt.speculative.eagle_worker_v2.EagleDraftWorker."
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner."


def register() -> None:
    """Entry point. Does nothing without the environment variable, nor in processes
    that run no model."""
    folder = os.environ.get(ENV_DIR)
    if not folder or "sglang.srt.managers.scheduler" not in sys.modules:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    recorder = Recorder(Path(folder))
    for path, hook in (
        (_WORKER + "draft_forward", recorder.chain),
        (_WORKER + "_draft_extend_for_prefill", recorder.seed),
        (_WORKER + "_draft_extend_for_decode", recorder.extend),
        (_RUNNER + "forward", recorder.forward),
    ):
        HookRegistry.register(path, hook, HookType.AROUND)


class Recorder:
    """Hooks of one scheduler process, each around the original it is given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: EventFile | None = None
        self._forwards: list[Forward] | None = None
        self._output: Any = None

    def chain(self, original: Callable, worker: Any, forward_batch: Any) -> Any:
        """`draft_forward`."""
        self._forwards = []
        result = original(worker, forward_batch)
        self._write(
            worker,
            CHAIN,
            list(forward_batch.rids),
            token_ids=_ints(result[2]),
            positions_after=_ints(forward_batch.positions),
        )
        return result

    def seed(self, original: Callable, worker: Any, batch: Any, *args, **kwargs) -> Any:
        """`_draft_extend_for_prefill`."""
        self._forwards = []
        rids = [req.rid for req in batch.reqs]
        draft_input = original(worker, batch, *args, **kwargs)
        self._write_selection(worker, SEED, rids, draft_input)
        return draft_input

    def extend(
        self, original: Callable, worker: Any, batch: Any, result: Any, **kwargs
    ):
        """`_draft_extend_for_decode`."""
        self._forwards = []
        rids = [req.rid for req in batch.reqs]
        original(worker, batch, result, **kwargs)
        # The site selects rows in the output that its forward returned.
        ids, logits, logsumexp, _ = describe(self._output)
        self._write_selection(
            worker,
            EXTEND,
            rids,
            result.next_draft_input,
            accept_lens=_ints(result.accept_lens),
            selected=[ids, logits, logsumexp],
            verified=_probabilities(result),
        )

    def forward(
        self, original: Callable, runner: Any, forward_batch: Any, *args, **kwargs
    ) -> Any:
        """`ModelRunner.forward`, of the draft model inside one of the three sites."""
        if self._forwards is None or not runner.is_draft_worker:
            return original(runner, forward_batch, *args, **kwargs)
        given = _ints(forward_batch.input_ids), _ints(forward_batch.positions)
        result = original(runner, forward_batch, *args, **kwargs)
        self._output = result.logits_output
        self._forwards.append(Forward(*given, *describe(self._output)))
        return result

    def _write_selection(
        self,
        worker: Any,
        site: str,
        rids: list[str],
        draft_input: Any,
        **fields: list,
    ) -> None:
        self._write(
            worker,
            site,
            rids,
            token_ids=_ints(draft_input.topk_index),
            topk_p=draft_input.topk_p.flatten().tolist(),
            probability=_probabilities(draft_input),
            **fields,
        )

    def _write(
        self,
        worker: Any,
        site: str,
        rids: list[str],
        *,
        token_ids: list,
        topk_p: list[float] = (),
        positions_after: list[int] = (),
        accept_lens: list[int] = (),
        selected: list[list] = (),
        probability: list[list[float]] = (),
        verified: list[list[float]] = (),
    ) -> None:
        if self._file is None:
            self._file = EventFile(self._folder, torch.distributed.get_rank())
        event = Event(
            site=site,
            rids=rids,
            forwards=self._forwards,
            token_ids=token_ids,
            topk_p=list(topk_p),
            positions_after=list(positions_after),
            accept_lens=list(accept_lens),
            selected=list(selected),
            packed=getattr(worker, "vocab_parallel_draft", None) is not None,
            packed_modules=packed_modules(),
            probability=list(probability),
            verified=list(verified),
        )
        self._forwards = None
        self._file.append(event)


def packed_modules() -> list[str]:
    """The packed path's modules that this process has imported."""
    return sorted(
        name for name in sys.modules if any(part in name for part in PACKED_NAMES)
    )


def describe(output: Any) -> tuple[list[int], list[float], list[float], list[int]]:
    """Best token, its logit, log-sum-exp and number of equally probable tokens per
    row, of a packed output (`logits_token_ids` is set) or of a dense one."""
    logits = output.next_token_logits.float()
    ids = getattr(output, "logits_token_ids", None)
    if ids is not None:
        best = logits[:, 0].tolist()
        ids = ids if ids.dim() == 1 else ids[:, 0]
        return _ints(ids), best, output.logits_logsumexp.tolist(), [0] * len(best)
    best, ids = logits.max(dim=-1).values, []
    for row, value in zip(logits, best):
        # The smallest id, which torch's argmax does not promise.
        ids.append(int((row == value).nonzero()[0, 0]))
    probability = logits.softmax(dim=-1)
    equal = (probability == probability.amax(dim=-1, keepdim=True)).sum(dim=-1)
    return ids, best.tolist(), logits.double().logsumexp(dim=-1).tolist(), _ints(equal)


def _ints(tensor: torch.Tensor) -> list:
    return tensor.tolist()


def _probabilities(carrier: Any) -> list[list[float]]:
    """`draft_probability` of a result or a draft input, empty where there is none."""
    values = getattr(carrier, "draft_probability", None)
    return [] if values is None else values.tolist()
