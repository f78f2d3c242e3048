"""The prompts of a demo, and the checks before anything starts."""

from __future__ import annotations

from scripts.demo.settings import Settings
from scripts.serving.models import check_fork, check_tp, read_config
from scripts.serving.ports import check_port_free
from scripts.small_model.prepare import fixed_prompts


def check_inputs(settings: Settings) -> None:
    """ValueError for what would fail only after a server has started."""
    check_tp(read_config(settings.model_path), settings.tp)
    check_fork(settings.fork)
    if settings.port is not None:
        check_port_free(settings.port)


def prompts_for(settings: Settings) -> list[list[int]]:
    """Fixed prompts of token ids, as many as the largest phase asks for."""
    return fixed_prompts(
        settings.model_path,
        max(settings.requests),
        settings.prompt_tokens,
        settings.seed,
    )
