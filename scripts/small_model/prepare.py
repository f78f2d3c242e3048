"""The small model in `build/models`, and fixed prompts for any model folder."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from scripts.serving.cpu_engine import ROOT
from scripts.serving.models import read_config
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


def fixed_prompts(path: Path, count: int, length: int, seed: int) -> list[list[int]]:
    """Prompts of token ids, the same for every call; a small model gets active ids."""
    spec = read_spec(path)
    if spec is not None:
        return make_prompts(spec, count, length, seed)
    vocab_size = read_config(path)["vocab_size"]
    source = random.Random(seed)
    return [[source.randrange(vocab_size) for _ in range(length)] for _ in range(count)]
