"""The served small model against its own forward in plain torch."""

from __future__ import annotations

import pytest
import torch

from scripts.serving import complete
from scripts.serving.client import get_json
from scripts.small_model.folder import load_model, make_prompts
from scripts.small_model.serve import SmallServers
from scripts.small_model.simulate import generate
from scripts.small_model.spec import ModelSpec

NUM_STEPS = 3
TOKENS = 24


@pytest.mark.parametrize(
    ("spec", "tp"),
    [
        (ModelSpec(vocab_size=1003), 2),
        (
            ModelSpec(
                vocab_size=1001,
                hidden_size=192,
                num_heads=6,
                num_kv_heads=3,
                tie_word_embeddings=True,
            ),
            3,
        ),
    ],
    ids=["untied-tp2", "tied-tp3"],
)
def test_server_equals_simulation(
    servers: SmallServers, spec: ModelSpec, tp: int
) -> None:
    """Red when a weight lands in the wrong place, when the CPU engine's attention
    reads the wrong keys, when the counter attributes steps to the wrong model, or when
    the draft's confidence is reported without being asked for."""
    torch.set_num_threads(2)
    prompts = make_prompts(spec, 3, 16, seed=3)
    with servers.launch(spec=spec, tp=tp) as running:
        model = load_model(running.model_path)
        before = running.counters() if list(running.counter_dir.glob("*")) else None
        served = [complete(running.url, prompt, TOKENS) for prompt in prompts]
        counters = running.counters()
        state = get_json(f"{running.url}/server_info")["internal_states"][0]
    expected = [generate(model, prompt, TOKENS, NUM_STEPS) for prompt in prompts]
    assert [c.output_ids for c in served] == [e.output_ids for e in expected]
    assert [c.verify_rounds for c in served] == [e.verify_rounds for e in expected]
    # Without its flag nothing of the draft's confidence is sent.
    assert all(c.draft_confidence is c.verified_tokens is None for c in served)
    averages = {name for name in state if name.startswith("avg_spec_")}
    assert averages <= {"avg_spec_accept_length"}
    rounds = sum(e.verify_rounds for e in expected)
    for rank in counters:
        started = before[rank.rank].get("draft_logits", "all_gather") if before else 0
        steps = rank.get("draft_logits", "all_gather") - started
        # A seed per prompt, and per round one extend and the chain's other steps.
        assert steps == len(prompts) + rounds * NUM_STEPS
