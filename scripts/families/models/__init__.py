"""Small random models of the draft families that SGLang's EAGLE workers serve."""

from __future__ import annotations

from . import deepseek, dspark, llama, mimo, mimo_v2, qwen3_5, step3p5
from .weights import VOCAB

__all__ = [
    "VOCAB",
    "deepseek",
    "dspark",
    "llama",
    "mimo",
    "mimo_v2",
    "qwen3_5",
    "step3p5",
]
