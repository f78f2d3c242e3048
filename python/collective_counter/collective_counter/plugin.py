"""The SGLang plugin: hooks on logits processors and on collectives."""

from __future__ import annotations

import functools
import os
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collective_counter.targets import (
    GPU_TARGETS,
    RESULT,
    SHM_TARGETS,
    TORCH_TARGETS,
    Target,
    argument,
    nbytes,
)
from collective_counter.tracker import Tracker

ENV_DIR = "VPDRAFT_COUNTER_DIR"
_DRAFT_MARK = "_collective_counter_draft"
_PROCESSOR = "sglang.srt.layers.logits_processor.LogitsProcessor."
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner."


def register() -> None:
    """Entry point. Does nothing without the environment variable, nor in processes
    that run no model."""
    folder = os.environ.get(ENV_DIR)
    if not folder or "sglang.srt.managers.scheduler" not in sys.modules:
        return
    import torch

    tracker = Tracker(Path(folder), torch.distributed.get_rank)
    targets = list(TORCH_TARGETS)
    if torch.cuda.is_available():
        targets += GPU_TARGETS
    for target in targets:
        if _exists(target.path):
            _around(target.path, _counting(tracker, target))
    _around(_PROCESSOR + "forward", _scoping(tracker))
    _around(_PROCESSOR + "_compute_lm_head", _head(tracker))
    _around(_RUNNER + "load_model", _marking(tracker))


def _around(path: str, hook: Callable) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(path, hook, HookType.AROUND)


def _exists(path: str) -> bool:
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        return False
    return True


def _counting(tracker: Tracker, target: Target) -> Callable:
    """An AROUND hook that counts one collective."""

    def hook(original: Callable, *args: Any, **kwargs: Any) -> Any:
        with tracker.collective(target.kind) as record:
            result = original(*args, **kwargs)
            # A disabled communicator returns without communicating.
            if record is not None and not (args and _disabled(args[0])):
                _record(record, target, args, kwargs, result)
            return result

    return hook


def _disabled(first: Any) -> bool:
    return getattr(first, "disabled", False) is True


def _record(
    record: Callable, target: Target, args: tuple, kwargs: dict, result: Any
) -> None:
    output = None
    if target.output == RESULT:
        output = result
    elif target.output is not None:
        output = argument(target.output, args, kwargs)
    shape = None
    if target.input is not None:
        shape = getattr(argument(target.input, args, kwargs), "shape", None)
    record(nbytes(output), None if shape is None else tuple(shape))


def _scoping(tracker: Tracker) -> Callable:
    def hook(original: Callable, module: Any, *args: Any, **kwargs: Any) -> Any:
        draft = getattr(module, _DRAFT_MARK, False)
        with tracker.logits("draft_logits" if draft else "target_logits"):
            return original(module, *args, **kwargs)

    return hook


def _head(tracker: Tracker) -> Callable:
    def hook(original: Callable, *args: Any, **kwargs: Any) -> Any:
        logits = original(*args, **kwargs)
        tracker.head(logits.shape[0], logits.shape[-1])
        return logits

    return hook


def _marking(tracker: Tracker) -> Callable:
    """After loading: mark a draft's logits processors, hook late CPU ops."""

    def hook(original: Callable, runner: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(runner, *args, **kwargs)
        if runner.is_draft_worker:
            from sglang.srt.layers.logits_processor import LogitsProcessor

            for module in runner.model.modules():
                if isinstance(module, LogitsProcessor):
                    setattr(module, _DRAFT_MARK, True)
        _hook_shm_ops(tracker)
        return result

    return hook


def _hook_shm_ops(tracker: Tracker) -> None:
    import torch

    for target in SHM_TARGETS:
        op = getattr(torch.ops.sgl_kernel, target.path, None)
        if op is None or hasattr(op, "__wrapped__"):
            continue
        counted = functools.partial(_counting(tracker, target), op)
        counted.__wrapped__ = op
        setattr(torch.ops.sgl_kernel, target.path, counted)
