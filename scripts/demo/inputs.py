"""The model and the prompts of a demo, and the checks before anything starts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.demo.settings import ROOT, Settings
from scripts.serving.ports import check_port_free
from scripts.small_model.folder import make_prompts, read_spec, write_model
from scripts.small_model.spec import ModelSpec


def prepare_model(
    path: Path | None, spec: ModelSpec, say: Callable[[str], None]
) -> Path:
    """The folder to serve: the given one, or the small model, made when missing."""
    if path is not None:
        return path
    tied = "-tied" if spec.tie_word_embeddings else ""
    folder = ROOT / "build" / "models" / f"mimo-{spec.vocab_size}-{spec.dtype}{tied}"
    if read_spec(folder) != spec:
        say(f"making the small MTP model in {folder.relative_to(ROOT)}")
        write_model(spec, folder)
    return folder


def read_config(path: Path) -> dict[str, Any]:
    """A model's `config.json`; ValueError when there is none to read."""
    try:
        return json.loads((path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--model-path {path}: cannot read config.json ({error}); give a model "
            f"folder, or leave the option out to have the small model made"
        ) from None


def check_tp(config: dict[str, Any], tp: int) -> None:
    """ValueError when the model's heads cannot be split over `tp` ranks."""
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    if heads % tp or (kv_heads % tp and tp % kv_heads):
        raise ValueError(
            f"--tp {tp} does not divide the model's {heads} attention heads and "
            f"{kv_heads} key-value heads; choose another --tp or model"
        )


def check_inputs(settings: Settings) -> None:
    """ValueError for what would fail only after a server has started."""
    check_tp(read_config(settings.model_path), settings.tp)
    if not (settings.fork / "sglang" / "launch_server.py").is_file():
        raise ValueError(f"--fork {settings.fork}: no fork tree; run `make fork`")
    if settings.port is not None:
        check_port_free(settings.port)


def prompts_for(settings: Settings) -> list[list[int]]:
    """Fixed prompts of token ids, as many as the largest phase asks for."""
    count, length = max(settings.requests), settings.prompt_tokens
    spec = read_spec(settings.model_path)
    if spec is not None:
        return make_prompts(spec, count, length, settings.seed)
    vocab_size = read_config(settings.model_path)["vocab_size"]
    source = random.Random(settings.seed)
    return [[source.randrange(vocab_size) for _ in range(length)] for _ in range(count)]
