"""MiMo MTP: the small model of the demo, in other sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scripts.small_model.folder import write_model
from scripts.small_model.spec import ModelSpec


@dataclass(frozen=True)
class SmallModel:
    """A checkpoint that the small model's builder writes."""

    spec: ModelSpec

    def write(self, folder: Path) -> Path:
        """Write the model; returns the folder."""
        return write_model(self.spec, folder)


def tp2() -> SmallModel:
    return SmallModel(ModelSpec(vocab_size=1003))


def tied_tp2() -> SmallModel:
    return SmallModel(ModelSpec(vocab_size=1003, tie_word_embeddings=True))


def tp3() -> SmallModel:
    return SmallModel(_three_ranks(1001))


def tied_tp3() -> SmallModel:
    return SmallModel(_three_ranks(1003, tied=True))


def tp4() -> SmallModel:
    """Two key-value heads: each is on two ranks."""
    return SmallModel(ModelSpec(vocab_size=1002, num_heads=8, num_kv_heads=2))


def _three_ranks(vocab_size: int, tied: bool = False) -> ModelSpec:
    return ModelSpec(
        vocab_size=vocab_size,
        hidden_size=192,
        num_heads=6,
        num_kv_heads=3,
        tie_word_embeddings=tied,
    )
