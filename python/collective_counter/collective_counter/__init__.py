"""Counts collectives where a running SGLang server calls them.

With this package's parent folder on `PYTHONPATH`, SGLang finds the plugin by its
entry point. It does nothing unless `VPDRAFT_COUNTER_DIR` names a folder; then every
rank keeps its live figures in one small file there, which `read_counters` reads while
the server runs. A killed server loses nothing.

Three scopes are told apart: `draft_logits` and `target_logits` are everything that
`LogitsProcessor.forward` calls after the head of the draft or target model, that is
the vocabulary collectives; `other` is the rest of the process. CUDA graph replays
call no Python and are not seen: count with `--disable-cuda-graph`.
"""

from collective_counter.figures import DraftFigures, draft_figures
from collective_counter.table import (
    KINDS,
    SCOPES,
    RankCounters,
    read_counters,
    read_settled_counters,
    subtract,
)

__all__ = [
    "KINDS",
    "SCOPES",
    "DraftFigures",
    "RankCounters",
    "draft_figures",
    "read_counters",
    "read_settled_counters",
    "subtract",
]
