"""What a small model is made of, and the checks on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>", "<user>", "<assistant>")
NUM_BYTES = 256
MIN_VOCAB = NUM_BYTES + len(SPECIAL_TOKENS) + 64


@dataclass(frozen=True)
class ModelSpec:
    """Sizes and construction constants of one model.

    `noise` and `draft_noise` scale the attention output of the target and of the MTP
    layer relative to an embedding's length; `second_weight` is the weight of the
    second successor against 1.0 for the first. Their defaults were set with
    `simulate.py` (accept length between 1.5 and 3.5 at three draft steps).

    With `two_classes` a token is easy or hard to draft, and so are its successors: it
    has four, and those beside the first weigh `easy_second_weight` or `second_weight`
    times what ties them with it. How well a request is drafted, and how sure the draft
    is, then follow from its prompt.
    """

    vocab_size: int = 248320
    active_tokens: int = 4096
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 8
    num_kv_heads: int = 4
    intermediate_size: int = 384
    dtype: str = "float32"
    tie_word_embeddings: bool = False
    seed: int = 1
    noise: float = 0.5
    draft_noise: float = 0.2
    second_weight: float = 0.97
    embed_scale: float = 0.25
    max_positions: int = 4096
    two_classes: bool = False
    easy_second_weight: float = 0.75

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r}: choose one of {sorted(DTYPES)}")
        if self.vocab_size < MIN_VOCAB:
            raise ValueError(f"vocab size {self.vocab_size}: at least {MIN_VOCAB}")
        if self.hidden_size % 2 or self.hidden_size < 64:
            raise ValueError(f"hidden size {self.hidden_size}: even and at least 64")
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"hidden size {self.hidden_size} is not an even multiple of "
                f"{self.num_heads} heads"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads are not a multiple of "
                f"{self.num_kv_heads} key-value heads"
            )
        if self.intermediate_size < self.mapping_units:
            raise ValueError(
                f"intermediate size {self.intermediate_size}: at least "
                f"{self.mapping_units} to hold the successor map"
            )
        if self.two_classes and self.tie_word_embeddings:
            raise ValueError("two classes need a head that is not the embedding")

    @property
    def head_dim(self) -> int:
        """SGLang's CPU engine knows no other head size for this architecture."""
        return self.hidden_size // self.num_heads

    @property
    def planes(self) -> int:
        """Number of 2-D rotation planes; two dimensions are left over."""
        return (self.hidden_size - 2) // 2

    @property
    def const_dim(self) -> int:
        """The dimension that holds the same constant in every embedding."""
        return self.hidden_size - 2

    @property
    def class_dim(self) -> int:
        """The dimension that holds a token's class, + hard and - easy, or 0."""
        return self.hidden_size - 1

    @property
    def mapping_units(self) -> int:
        """Units of the MLP that maps successors; of two maps with two classes."""
        return 4 * self.planes * (2 if self.two_classes else 1)

    @property
    def num_active(self) -> int:
        """How many tokens the model generates; even with two classes."""
        count = min(self.active_tokens, self.vocab_size - len(SPECIAL_TOKENS))
        return count - count % 2 if self.two_classes else count

    @property
    def special_ids(self) -> dict[str, int]:
        """Special tokens follow the byte tokens, so ids 0 and V-1 stay ordinary."""
        return {token: NUM_BYTES + i for i, token in enumerate(SPECIAL_TOKENS)}

    def check_tp(self, tp_size: int) -> None:
        """Raise ValueError when the heads cannot be split over `tp_size` ranks."""
        heads, kv = self.num_heads, self.num_kv_heads
        if heads % tp_size or (kv % tp_size and tp_size % kv):
            raise ValueError(
                f"TP size {tp_size} does not divide the model's {heads} attention "
                f"heads and {kv} key-value heads; choose another --tp or model"
            )

    def to_config(self) -> dict[str, Any]:
        """The Hugging Face `config.json` that SGLang reads."""
        return {
            "architectures": ["MiMoForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "max_position_embeddings": self.max_positions,
            "num_nextn_predict_layers": 1,
            "tie_word_embeddings": self.tie_word_embeddings,
            "torch_dtype": self.dtype,
            # The release whose field names these are.
            "transformers_version": "4.51.0",
            "bos_token_id": self.special_ids["<bos>"],
            "eos_token_id": self.special_ids["<eos>"],
            "pad_token_id": self.special_ids["<pad>"],
        }

    def to_dict(self) -> dict[str, Any]:
        """Every field, for the record beside the weights."""
        return asdict(self)
