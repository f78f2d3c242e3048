"""Which draft families are compared, and on which path each has to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sglang.srt.layers.vocab_parallel_draft_eligibility import DraftFacts, dense_reason

from .models import deepseek, llama, mimo, mimo_v2, qwen3_5, step3p5

FLAG = "--speculative-vocab-parallel-draft"
SERVED_TEST = "test/cpu_engine/test_families_served.py"
EVERYTHING = "make families"


class Writable(Protocol):
    """A checkpoint."""

    def write(self, folder: Path) -> Path: ...


Builder = Callable[[], Writable]


@dataclass(frozen=True)
class Family:
    """A target, its draft (None: the target carries it) and how they speculate.

    `layout` says what the draft's head is and how the vocabulary lies on the ranks.
    `facts` are those of the draft that differ from an eligible one's. `in_ci` families
    are compared by the test suite, one of each class of worker. `varies` tells that
    the number of steps depends on the load, so that accept histograms do.
    """

    target: Builder
    draft: Builder | None
    algorithm: str
    layout: str
    tp: int = 2
    topk: int = 1
    num_draft_tokens: int = 4
    facts: dict[str, Any] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    tokens: int = 40
    in_ci: bool = False
    varies: bool = False

    @property
    def reason(self) -> str | None:
        """Why it drafts densely with the flag on; None: it takes the packed path."""
        reason = dense_reason(DraftFacts(tp_size=self.tp, **self.facts))
        return reason and reason.value

    @property
    def path(self) -> str:
        """`packed` or `dense`."""
        return "dense" if self.reason else "packed"

    @property
    def tested_by(self) -> str:
        """What compares it with the flag on and off."""
        return SERVED_TEST if self.in_ci else EVERYTHING

    def speculation(self, draft_path: Path | None) -> list[str]:
        """Server arguments for three draft steps."""
        args = [
            *("--speculative-algorithm", self.algorithm),
            *("--speculative-num-steps", "3"),
            *("--speculative-eagle-topk", str(self.topk)),
            *("--speculative-num-draft-tokens", str(self.num_draft_tokens)),
            *self.args,
        ]
        if draft_path is not None:
            args += ["--speculative-draft-model-path", str(draft_path)]
        return args


def _tree(draft: Builder, algorithm: str, layout: str) -> Family:
    return Family(
        llama.target,
        draft,
        algorithm,
        layout,
        topk=4,
        num_draft_tokens=8,
        facts={"topk": 4},
    )


# Below the plain largest logit, so that it bends every winner.
SOFTCAP = {"final_logit_softcapping": 10.0}

TARGETS_HEAD = "the target's head, 512 and 491 tokens"
REDUCED = "own head over 500 of 1003 tokens, 256 and 244"
OWN_HEAD = "own head, 512 and 491 tokens"

FAMILIES = {
    "eagle": Family(llama.target, llama.eagle, "EAGLE", TARGETS_HEAD),
    "eagle-adaptive": Family(
        llama.target,
        llama.eagle,
        "EAGLE",
        TARGETS_HEAD,
        args=("--speculative-adaptive",),
        tokens=96,
        varies=True,
    ),
    "eagle-tree": _tree(llama.eagle, "EAGLE", TARGETS_HEAD),
    "eagle3": Family(llama.target, llama.eagle3, "EAGLE3", REDUCED, in_ci=True),
    "eagle3-tree": _tree(llama.eagle3, "EAGLE3", REDUCED),
    "standalone": Family(
        llama.target, llama.standalone, "STANDALONE", OWN_HEAD, in_ci=True
    ),
    "standalone-tree": _tree(llama.standalone, "STANDALONE", OWN_HEAD),
    "deepseek": Family(deepseek.build, None, "NEXTN", TARGETS_HEAD),
    "qwen3.5": Family(qwen3_5.build, None, "NEXTN", TARGETS_HEAD),
    "mimo-v2": Family(
        mimo_v2.build,
        None,
        "EAGLE",
        "three layers with the target's head, 512 and 491 tokens",
        in_ci=True,
    ),
    "step3.5": Family(
        step3p5.build,
        None,
        "EAGLE",
        "three layers, each with a head of its own, 512 and 491 tokens",
    ),
    "mimo": Family(mimo.tp2, None, "NEXTN", TARGETS_HEAD),
    "mimo-tied": Family(
        mimo.tied_tp2, None, "NEXTN", "head tied to the embedding, 512 and 491 tokens"
    ),
    "mimo-tp3": Family(
        mimo.tp3, None, "NEXTN", "the target's head, 384, 384 and 233 tokens", tp=3
    ),
    "mimo-tied-softcap-tp3": Family(
        mimo.tied_tp3,
        None,
        "NEXTN",
        "head tied to the embedding, softcap, 384, 384 and 235 tokens",
        tp=3,
        args=("--json-model-override-args", json.dumps(SOFTCAP)),
    ),
    "mimo-tp4": Family(
        mimo.tp4, None, "NEXTN", "the target's head, 256 three times and 234", tp=4
    ),
}


@dataclass(frozen=True)
class UnitCase:
    """A draft that is tested without a server: in a real group of gloo ranks, or, of
    the ones that draft densely, by the eligibility function alone."""

    layout: str
    tested_by: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str | None:
        """As of a family."""
        reason = dense_reason(DraftFacts(**self.facts))
        return reason and reason.value

    @property
    def path(self) -> str:
        """As of a family."""
        return "dense" if self.reason else "packed"


_DP = "test/registered/spec/test_vocab_parallel_draft_dp.py"
_HEADS = "test/registered/spec/test_vocab_parallel_draft_heads.py"
_ELIGIBILITY = "test/registered/spec/test_vocab_parallel_draft_eligibility.py"
_DFLASH = "test/registered/spec/test_vocab_parallel_dflash.py"
_DOMINO = "test/registered/spec/test_vocab_parallel_domino.py"
_DSPARK = "test/registered/spec/test_vocab_parallel_dspark.py"
_BLOCK = "test/registered/spec/test_vocab_parallel_block_install.py"

UNIT_CASES = {
    "head quantised": UnitCase("through its own quant method", _HEADS),
    "head in FP32 over BF16": UnitCase("product in FP32", _HEADS),
    "head shared by object": UnitCase("the target's module", _HEADS),
    "head with a positive scale": UnitCase("scaled before the reduction", _HEADS),
    "head with added vocabulary": UnitCase(
        "SGLang reads its columns as ids", _HEADS, {"added_vocab": True}
    ),
    "data-parallel attention": UnitCase("head over all ranks, idle ones too", _DP),
    "DP LM head": UnitCase("head over an attention-TP group", _DP),
    "LM-head all-to-all": UnitCase("words gathered, not exchanged", _DP),
    "DFlash": UnitCase("one exchange a block, graph sampler and eager twin", _DFLASH),
    "Domino": UnitCase("first tokens and the candidate pool in one gather", _DOMINO),
    "DSpark, greedy": UnitCase("winners exchanged every Markov step", _DSPARK),
    "DSpark, sampled": UnitCase(
        "verification reads the distribution", _BLOCK, {"sampled_draft": True}
    ),
    "frozen-KV MTP": UnitCase(
        "whole head on every rank", _ELIGIBILITY, {"gathers": False}
    ),
    "rejection sampling": UnitCase(
        "verification needs all of the distribution",
        _ELIGIBILITY,
        {"rejection_sampling": True},
    ),
    "--speculative-token-map": UnitCase(
        "the target's head, rows taken by global ids", _ELIGIBILITY, {"token_map": True}
    ),
}
