"""A DSpark draft without a confidence head through the real server, in a mode that
stock SGLang refuses it in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from scripts.families.models import dspark, llama
from scripts.families.serve import CONCURRENCY, READY_S, REQUEST_S, Kitchen, prompts
from scripts.serving import complete_all, cpu_engine, launch
from transformers import AutoModelForCausalLM

TOKENS = 40
ARGS = [
    *("--speculative-algorithm", "DSPARK"),
    *("--speculative-vocab-parallel-draft", "on"),
    *("--speculative-dspark-confidence-source", "draft-probability"),
    "--disable-cuda-graph",
]
ENV = {
    # The CPU's attention takes blocks of one length: nothing is verified compactly.
    "SGLANG_RAGGED_VERIFY_MODE": "cap-accept",
    "SGLANG_DSPARK_USE_GREEDY_DRAFT": "1",
    "SGLANG_DSPARK_DEBUG_CONFIDENCE_PREFIX_SCHEDULER": "1",
}
# A step takes longer by the token, so that verifying one more pays or does not.
COSTS = {
    "sample_batch_tokens": list(range(1, 65)),
    "sample_steps_per_sec": [1000 / (10 + 4 * tokens) for tokens in range(1, 65)],
    "max_batch_tokens": 64,
}


@torch.inference_mode()
def greedy_tokens(target: torch.nn.Module, prompt: list[int]) -> list[int]:
    """The target's own answer, from another implementation of it."""
    ids = list(prompt)
    for _ in range(TOKENS):
        ids.append(int(target(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def decisions(log: str, rank: int) -> list[tuple[int, list[float]]]:
    """Verify length and survival of every request that a rank's planner logged."""
    line = (
        rf"TP{rank}\] \[DSPARK-CPS\]   req=.* verify_len=(\d+) sort_survival=\[(.*)\]"
    )
    found = re.findall(line, log)
    return [(int(n), [float(p) for p in row.split(",")]) for n, row in found]


@pytest.mark.slow
def test_a_headless_draft_is_served(tmp_path: Path) -> None:
    """Red if the server asks for a head, drafts densely, gives other tokens than the
    target, or plans its verify lengths without the probabilities of the draft, or on
    another rank by others."""
    kitchen = Kitchen(tmp_path / "models")
    target, draft = kitchen.model(llama.target), kitchen.model(dspark.draft)
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(COSTS))
    args = [
        *cpu_engine.engine_args(tp=2),
        *ARGS,
        *("--speculative-draft-model-path", str(draft)),
        *("--speculative-dspark-sps-table-path", str(costs)),
    ]
    options = dict(tp=2, args=args, env=ENV, ready_timeout_s=READY_S)
    with launch(target, tmp_path / "server", **options) as running:
        answers = [
            answer
            for concurrency in (1, CONCURRENCY)
            for answer in complete_all(
                running.url, prompts(), TOKENS, concurrency, timeout_s=REQUEST_S
            )
        ]
        status = running.draft_status()
    assert status["path"] == "packed"
    reference = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    expected = [greedy_tokens(reference, prompt) for prompt in prompts()]
    assert [answer.output_ids for answer in answers] == expected * 2
    log = (tmp_path / "server" / "server.log").read_text()
    planned = decisions(log, rank=0)
    assert planned == decisions(log, rank=1)
    assert len({row[-1] for _, row in planned}) > 10
    by_length = {
        length: [row[-1] for n, row in planned if n == length]
        for length in sorted({length for length, _ in planned})
    }
    assert len(by_length) > 2
    # A request whose chain is likely to survive is verified further.
    means = [sum(rows) / len(rows) for rows in by_length.values()]
    assert means[0] < means[-1]
