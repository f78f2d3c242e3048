"""Seeded random weights for small models of any family, and their folder on disk.

The head of a target is a noisy permutation of its embedding, so that a token mostly
decides the next one and a draft of one layer is often right.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from scripts.small_model.spec import ModelSpec
from scripts.small_model.tokenizer import write_tokenizer

VOCAB, HIDDEN, MLP = 1003, 128, 256
# Keys that every config has.
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "float32",
    "bos_token_id": 257,
    "eos_token_id": 258,
}
Tensors = dict[str, torch.Tensor]


@dataclass
class Model:
    """A checkpoint in memory."""

    config: dict
    tensors: Tensors = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write config, weights and a tokenizer; returns the folder."""
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(COMMON | self.config))
        # A copy of each tensor: the format refuses two names for one memory.
        copies = {name: tensor.clone() for name, tensor in self.tensors.items()}
        save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})
        write_tokenizer(ModelSpec(vocab_size=VOCAB), folder)
        return folder


class Weights:
    """Draws tensors from one seeded generator."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator) * std

    def permutation(self, n: int) -> torch.Tensor:
        return torch.randperm(n, generator=self._generator)

    def linear(self, prefix: str, std: float, **shapes: tuple[int, int]) -> Tensors:
        """`<prefix><name>.weight` of `(out, in)` for every keyword."""
        return {
            f"{prefix}{name}.weight": self.normal(*shape, std=std)
            for name, shape in shapes.items()
        }

    def mlp(self, prefix: str, std: float, width: int = MLP) -> Tensors:
        return self.linear(
            prefix,
            std,
            gate_proj=(width, HIDDEN),
            up_proj=(width, HIDDEN),
            down_proj=(HIDDEN, width),
        )

    def embedding_and_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Embedding, and a head whose row p(i) resembles the embedding of i."""
        embedding = self.normal(VOCAB, HIDDEN, std=1.0)
        head = self.normal(VOCAB, HIDDEN, std=0.6)
        head[self.permutation(VOCAB)] += embedding
        return embedding, head

    def mixing(self, *shares: float) -> torch.Tensor:
        """A projection that adds its inputs `[HIDDEN]` each, in the given shares."""
        eye = torch.eye(HIDDEN)
        mixed = torch.cat([share * eye for share in shares], dim=1)
        return mixed + self.normal(*mixed.shape, std=0.01)


def ones(*names: str, width: int = HIDDEN) -> Tensors:
    return {f"{name}.weight": torch.ones(width) for name in names}


def zeros(*names: str, width: int = HIDDEN) -> Tensors:
    return {f"{name}.weight": torch.zeros(width) for name in names}
