"""The packed path answers every request as the dense one does."""

from __future__ import annotations

import json
import re

import pytest

from engine_arms.client import Answer
from engine_arms.compare import differences
from engine_arms.recording import Recording
from engine_arms.scenarios import (
    DISTURBED,
    FEW,
    FORCED_TOKEN,
    LENGTHS,
    LONGEST,
    PENALTIES,
    REGEX,
    SCHEMA,
    SCENARIOS,
    TOKENS,
)

NAMES = [scenario.name for scenario in SCENARIOS]


@pytest.mark.parametrize("name", [*NAMES, *DISTURBED, "after"])
def test_same_answers(dense: Recording, packed: Recording, name: str) -> None:
    """Red when a token, a finish reason, a log-probability, the accept length or the
    accept histogram of any request depends on the draft path, or an error does."""
    assert dense.answers[name]
    assert differences(packed.answers[name], dense.answers[name]) == []


@pytest.mark.parametrize("name", ["alone", "together"])
def test_drafts_are_accepted_some_of_the_time(dense: Recording, name: str) -> None:
    """Red when the model drafts too badly or too well for a comparison to show
    anything: every accept length occurs, and the histogram is there."""
    histograms = [a["spec_correct_drafts_histogram"] for a in dense.answers[name]]
    totals = [
        sum(h[i] for h in histograms if i < len(h))
        for i in range(max(map(len, histograms)))
    ]
    assert len(totals) == 4 and min(totals) > 0
    lengths = [answer["spec_accept_length"] for answer in dense.answers[name]]
    assert len(set(lengths)) > 1 and 1.5 < sum(lengths) / len(lengths) < 3.5


def test_outputs_vary(dense: Recording) -> None:
    """Red when the model repeats itself, so that equal outputs would mean little."""
    for ids in dense.ids("alone") + dense.ids("together"):
        assert len(ids) == TOKENS and len(set(ids)) > TOKENS // 2


def test_logprobs_are_asked_for(dense: Recording) -> None:
    """Red when the answers hold no log-probabilities to compare."""
    for answer in dense.answers["logprobs"]:
        assert len(answer["input_token_logprobs"]) == answer["prompt_tokens"]
        assert len(answer["output_token_logprobs"]) == TOKENS
        assert all(len(top) == 5 for top in answer["output_top_logprobs"])
        assert all(len(top) == 5 for top in answer["input_top_logprobs"][1:])


@pytest.mark.parametrize("index", range(len(PENALTIES)), ids=str)
def test_penalties_change_the_answer(dense: Recording, index: int) -> None:
    """Red when a penalty is ignored, so that comparing its answers shows nothing."""
    answers = dense.ids("penalties")
    penalised, plain = answers[2 * index : 2 * index + 2]
    assert penalised != plain
    assert len(penalised) == len(plain) == TOKENS


def test_bias_changes_the_answer(dense: Recording) -> None:
    """Red when `logit_bias` is ignored."""
    forced, forbidden = dense.ids("bias")
    plain = dense.ids("alone")[0]
    assert set(forced) == {int(FORCED_TOKEN)}
    assert plain[0] not in forbidden and len(forbidden) == TOKENS


def test_grammar_holds(dense: Recording) -> None:
    """Red when a grammar is ignored."""
    by_regex, by_schema, by_ebnf = dense.answers["grammar"]
    assert re.fullmatch(REGEX, by_regex["text"])
    assert json.loads(by_schema["text"]) in json.loads(SCHEMA)["enum"]
    assert by_ebnf["text"] in ("{yes}", "{no}")


def test_stops_stop(dense: Recording) -> None:
    """Red when a stop string or a stop token is ignored."""
    for answer in dense.answers["stops"]:
        assert answer["finish_reason"]["type"] == "stop"
        assert 0 < answer["completion_tokens"] < TOKENS


def test_length_limits(dense: Recording, packed: Recording) -> None:
    """Red when the longest prompt is refused, or one token more is not."""
    for arm in (dense, packed):
        for length, answer in zip(LENGTHS, arm.answers["lengths"], strict=True):
            if length <= LONGEST:
                assert len(answer["output_ids"]) == FEW
            else:
                assert re.match("HTTP 400: .*(token|context)", answer["error"])
        fits, too_long = arm.answers["to_the_limit"]
        assert len(fits["output_ids"]) == 64 and "HTTP 400" in too_long["error"]


def test_prefix_is_cached(dense: Recording, packed: Recording) -> None:
    """Red when a known prompt is computed anew, so that no seed follows a hit, or when
    a hit changes the answer."""
    for arm in (dense, packed):
        first, *known = arm.answers["prefix"]
        assert first["cached_tokens"] < first["prompt_tokens"] // 2
        for answer in known:
            assert answer["cached_tokens"] > answer["prompt_tokens"] // 2
        assert known[0]["output_ids"] == first["output_ids"]


def test_sampled_tokens_vary(dense: Recording) -> None:
    """Red when a temperature is ignored: one prompt starts in several ways."""
    assert len({ids[0] for ids in dense.ids("sampled")}) > 1


def test_streams_grow(dense: Recording, packed: Recording) -> None:
    """Red when a stream is one block, or when its chunks do not add up."""
    for arm in (dense, packed):
        for answer in arm.answers["streams"]:
            assert_stream(answer)


def assert_stream(answer: Answer) -> None:
    chunks = answer["chunk_ids"]
    assert len(chunks) > 3
    for chunk, longer in zip(chunks, chunks[1:]):
        assert longer[: len(chunk)] == chunk
    assert chunks[-1] == answer["output_ids"]
