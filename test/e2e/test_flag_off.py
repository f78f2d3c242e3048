"""With the flag off, the fork serves as the installed SGLang does."""

from __future__ import annotations

from collective_counter import RankCounters, subtract

from scripts.serving import complete
from scripts.small_model.folder import make_prompts
from scripts.small_model.serve import SMALL, SmallServers

# The scheduler broadcasts requests on every turn of its idle loop too.
TIMED_KINDS = {"broadcast"}


def _serve(servers: SmallServers, **options) -> tuple[list, list[RankCounters], str]:
    prompts = make_prompts(SMALL, 4, 16, seed=11)
    with servers.launch(tp=2, **options) as running:
        complete(running.url, prompts[0], 4)
        before = running.counters()
        answers = [complete(running.url, prompt, 24) for prompt in prompts]
        delta = subtract(running.counters(), before)
        return answers, delta, running.server.log_text()


def _per_scope(rank: RankCounters) -> dict[str, dict[str, int]]:
    scopes = ("draft_logits", "target_logits", "other")
    return {
        scope: {k: n for k, n in rank.calls(scope).items() if k not in TIMED_KINDS}
        for scope in scopes
    }


def test_off_is_stock(servers: SmallServers) -> None:
    """Red when the default launch drafts other tokens, adds, drops or resizes a
    collective, or takes the packed path."""
    stock, stock_counters, _ = _serve(servers, fork=None)
    off, off_counters, log = _serve(servers)
    assert [c.output_ids for c in off] == [c.output_ids for c in stock]
    assert [c.verify_rounds for c in off] == [c.verify_rounds for c in stock]
    for ours, theirs in zip(off_counters, stock_counters, strict=True):
        assert _per_scope(ours) == _per_scope(theirs)
        assert _per_scope(ours)["draft_logits"]["all_gather"] > 0
        for scope in ("draft_logits", "target_logits"):
            size = ours.get(scope, "all_gather", "output_bytes")
            assert size == theirs.get(scope, "all_gather", "output_bytes")
    assert "path=packed" not in log
