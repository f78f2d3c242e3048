"""Every reason to draft densely: a fact that gives it, and where a server shows it.

`started` says what stock SGLang 0.5.23 does when it is started on the CPU engine with
that configuration; what it cannot start is tested as a fact only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sglang.srt.layers.vocab_parallel_draft_eligibility import DenseReason

FALLBACKS = "test/e2e/packed/test_fallbacks.py"
AUTO = "test/e2e/packed/test_auto.py"
SERVED = "starts"
REFUSED = "refused on a CPU"
REFUSED_BY_STOCK = (
    "refused by stock; starts with the edits for the engine (`docs/block-drafts.md`)"
)
NO_CPU = "it needs CUDA"
NO_MODEL = "no model that the CPU engine serves has it"


@dataclass(frozen=True)
class ReasonCase:
    """`facts` (of `DraftFacts`) give the reason; None: it is found out after them."""

    facts: dict[str, Any] | None
    configuration: str
    started: str = SERVED
    served_by: tuple[str, ...] = field(default=())


REASONS = {
    DenseReason.PIPELINE_PARALLEL: ReasonCase(
        {"pp_size": 2},
        "`--pp-size 2`",
        "refused; with `SGLANG_ENABLE_PP_SPEC=1` starts: "
        "`test/e2e/test_draft_confidence_pipelined.py`",
    ),
    DenseReason.DP_LM_HEAD: ReasonCase(
        {"dp_lm_head": True},
        "a block drafter with `--enable-dp-lm-head`",
        "fails with data-parallel attention: shapes differ in `_set_kv_buffer_impl`",
    ),
    DenseReason.LM_HEAD_ALL_TO_ALL: ReasonCase(
        {"lm_head_all_to_all": True},
        "a block drafter with `--enable-tp-lm-head-all-to-all`",
        "refused: it needs data-parallel attention",
    ),
    DenseReason.DP_ATTENTION: ReasonCase(
        {"dp_attention": True},
        "a block drafter with `--enable-dp-attention`",
        "fails: shapes differ in `_set_kv_buffer_impl`",
    ),
    DenseReason.TP1: ReasonCase({"tp_size": 1}, "`--tp 1`", SERVED, (FALLBACKS,)),
    DenseReason.NO_GATHER: ReasonCase(
        {"gathers": False}, "frozen-KV MTP (Gemma 4)", "not tried"
    ),
    DenseReason.UNSUPPORTED_WORKER: ReasonCase(
        {"has_packed_sites": False},
        "NGRAM, UNO",
        "NGRAM fails: no `sgl_kernel.speculative`; UNO is refused on a CPU",
    ),
    DenseReason.TOPK: ReasonCase(
        {"topk": 17},
        "`--speculative-eagle-topk 17`",
        SERVED,
        (FALLBACKS,),
    ),
    DenseReason.REJECTION_SAMPLING: ReasonCase(
        {"rejection_sampling": True},
        "`--speculative-use-rejection-sampling`",
        "fails: 0 active Triton drivers",
    ),
    DenseReason.SAMPLED_DRAFT: ReasonCase(
        {"sampled_draft": True}, "DSPARK, which samples its draft", REFUSED_BY_STOCK
    ),
    DenseReason.CANDIDATE_SEARCH: ReasonCase(
        {"candidate_search": True}, "DFLASH with a lattice of candidates", REFUSED
    ),
    DenseReason.WHOLE_VOCABULARY: ReasonCase(
        {"whole_vocabulary": True},
        "`--speculative-domino-candidate-pool-size 0`",
        REFUSED,
    ),
    DenseReason.MEGAKERNEL: ReasonCase(
        {"megakernel": True}, "DSPARK through NVIDIA's megakernel", NO_CPU
    ),
    DenseReason.TOKEN_MAP: ReasonCase(
        {"token_map": True},
        "`--speculative-token-map`",
        "fails with TP: IndexError, it takes rows of a shard by global ids",
    ),
    DenseReason.ADDED_VOCAB: ReasonCase(
        {"added_vocab": True}, "a head with added vocabulary", NO_MODEL
    ),
    DenseReason.UNSUPPORTED_HEAD: ReasonCase(
        {"supported_head": False}, "a head that is not a vocabulary shard", NO_MODEL
    ),
    DenseReason.NONPOSITIVE_SCALE: ReasonCase(
        {"logit_scale": 0.0}, "a logit scale of 0 or below", NO_MODEL
    ),
    DenseReason.UNSUPPORTED_DEVICE: ReasonCase(
        {"device": "npu"}, "another device than CUDA, HIP or CPU", "not a CPU"
    ),
    DenseReason.SOFTCAP_KERNEL: ReasonCase(
        {"softcap": 30.0, "device": "cuda"}, "a softcap on a GPU", "not a CPU"
    ),
    DenseReason.RANK_DISAGREEMENT: ReasonCase(
        None, "a rank whose head fails", "no configuration gives it"
    ),
    DenseReason.NOT_MEASURED: ReasonCase(
        None, "`auto` without a table", SERVED, (FALLBACKS, AUTO)
    ),
    DenseReason.MEASURED_SLOWER: ReasonCase(
        None, "`auto` with a table in which packed does not win", SERVED, ()
    ),
}
