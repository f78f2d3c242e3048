"""Small random models of the draft families that SGLang's EAGLE workers serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import deepseek, llama, mimo_v2, qwen3_5
from .weights import VOCAB, Model

__all__ = ["FAMILIES", "VOCAB", "Family", "Model"]


@dataclass(frozen=True)
class Family:
    """A target, its draft (None: the target carries it) and how they speculate.

    `reason` says why it drafts densely with the flag on; None: it takes the packed path.
    """

    target: Callable[[], Model]
    draft: Callable[[], Model] | None
    algorithm: str
    topk: int = 1
    num_draft_tokens: int = 4
    reason: str | None = None

    def args(self, draft_path: str | None) -> list[str]:
        """Server arguments for three draft steps."""
        args = [
            *("--speculative-algorithm", self.algorithm),
            *("--speculative-num-steps", "3"),
            *("--speculative-eagle-topk", str(self.topk)),
            *("--speculative-num-draft-tokens", str(self.num_draft_tokens)),
            *("--speculative-vocab-parallel-draft", "on"),
        ]
        if draft_path is not None:
            args += ["--speculative-draft-model-path", draft_path]
        return args


FAMILIES = {
    "eagle": Family(llama.target, llama.eagle, "EAGLE"),
    "eagle-tree": Family(llama.target, llama.eagle, "EAGLE", 4, 8),
    "eagle3": Family(llama.target, llama.eagle3, "EAGLE3"),
    "eagle3-tree": Family(llama.target, llama.eagle3, "EAGLE3", 4, 8),
    "standalone": Family(llama.target, llama.standalone, "STANDALONE"),
    "standalone-tree": Family(llama.target, llama.standalone, "STANDALONE", 4, 8),
    "deepseek": Family(deepseek.build, None, "NEXTN"),
    "mimo-v2": Family(mimo_v2.build, None, "EAGLE"),
    "qwen3.5": Family(qwen3_5.build, None, "NEXTN"),
}
