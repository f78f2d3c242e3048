"""What every arm is asked. Bodies are the same in every arm, request ids included."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine_arms.arms import CHUNK, CONTEXT, SPEC
from engine_arms.client import Answer
from scripts.small_model.folder import make_prompts

TOKENS = 32
Body = dict[str, Any]
# Answers to the scenarios before; in the arm's own words.
Earlier = Mapping[str, Sequence[Answer]]


@dataclass(frozen=True)
class Scenario:
    """Requests sent `concurrency` at a time; `bodies` may build on earlier answers."""

    name: str
    bodies: Callable[[Earlier], list[Body]]
    concurrency: int = 1
    streamed: bool = False


def prompts(count: int, length: int, seed: int) -> list[list[int]]:
    """Fixed prompts of the model's active tokens."""
    return make_prompts(SPEC, count, length, seed)


def body(input_ids: Sequence[int], sampling: Mapping[str, Any] = {}, **more) -> Body:
    """A greedy request for `TOKENS` tokens unless `sampling` says otherwise."""
    greedy = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    return {
        "input_ids": list(input_ids),
        "sampling_params": greedy | dict(sampling),
        **more,
    }


def fixed(make: Callable[[], list[Body]]) -> Callable[[Earlier], list[Body]]:
    """Bodies that do not depend on earlier answers."""
    return lambda _earlier: make()


def alone() -> list[Body]:
    return [body(prompt) for prompt in prompts(4, 16, seed=1)]


def together() -> list[Body]:
    return [body(prompt) for prompt in prompts(8, 16, seed=2)]


def logprobs() -> list[Body]:
    asked = dict(return_logprob=True, logprob_start_len=0, top_logprobs_num=5)
    return [body(prompt, **asked) for prompt in prompts(2, 12, seed=3)]


FORCED_TOKEN = "70"
# A penalty, and what makes it matter: a token that a bias repeats until its count
# outweighs the bias, one whose bias is just enough for its first time, and a factor
# below 1, which makes tokens come back that the plain answer has once.
PENALTIES = (
    ({"frequency_penalty": 2.0}, {"logit_bias": {FORCED_TOKEN: 30.0}}),
    ({"presence_penalty": 2.0}, {"logit_bias": {FORCED_TOKEN: 13.5}}),
    ({"repetition_penalty": 0.1}, {}),
)


def penalties() -> list[Body]:
    """Each penalty, and the same request without it."""
    prompt = prompts(1, 16, seed=1)[0]
    return [
        body(prompt, sampling)
        for penalty, plain in PENALTIES
        for sampling in (plain | penalty, plain)
    ]


def bias(earlier: Earlier) -> list[Body]:
    """One token forced, and the first token of the plain answer forbidden."""
    first = earlier["alone"][0]["output_ids"][0]
    prompt = prompts(4, 16, seed=1)[0]
    changes = {FORCED_TOKEN: 100.0}, {str(first): -100.0}
    return [body(prompt, {"logit_bias": change}) for change in changes]


REGEX = r"[0-9]{4}-[0-9]{2}"
SCHEMA = '{"enum": [17, "yes"]}'
EBNF = 'root ::= "{" ("yes" | "no") "}"'


def grammar() -> list[Body]:
    end = {"ignore_eos": False}
    rules = {"regex": REGEX}, {"json_schema": SCHEMA}, {"ebnf": EBNF}
    asked = zip(prompts(3, 16, seed=4), rules)
    return [body(prompt, rule | end) for prompt, rule in asked]


def stops(earlier: Earlier) -> list[Body]:
    """A string, and a token id, out of the middle of plain answers."""
    plain = earlier["alone"]
    text, ids = plain[0]["text"], plain[1]["output_ids"]
    first, second = prompts(4, 16, seed=1)[:2]
    middle = len(text) // 2
    return [
        body(first, {"stop": [text[middle : middle + 3]]}),
        body(second, {"stop_token_ids": [ids[len(ids) // 2]], "ignore_eos": False}),
    ]


# The server keeps one place a draft token, on top of what is asked for.
RESERVED = 4
FEW = 4
LENGTHS = (1, LONGEST := CONTEXT - RESERVED - FEW, LONGEST + 1, CONTEXT, CONTEXT + 1)


def lengths() -> list[Body]:
    """Prompts of one token, of as many as the server takes, and of more."""
    return [
        body(prompts(1, length, seed=60 + i)[0], {"max_new_tokens": FEW})
        for i, length in enumerate(LENGTHS)
    ]


def to_the_limit() -> list[Body]:
    """Generation up to the last place of the context, and past it."""
    prompt = prompts(1, CONTEXT - RESERVED - 64, seed=6)[0]
    return [body(prompt, {"max_new_tokens": n}) for n in (64, 65)]


def sampled() -> list[Body]:
    """One prompt several times. The first token is drawn; SGLang's CPU verify takes the
    argmax from there on."""
    chosen = {"temperature": 3.0, "top_p": 0.95, "top_k": 20}
    return [body(prompt, chosen) for prompt in prompts(1, 16, seed=7) * 6]


def chunked() -> list[Body]:
    """Prompts that prefill takes in three pieces, beside short ones."""
    long = prompts(2, 2 * CHUNK + 44, seed=8)
    return [body(p) for pair in zip(long, prompts(2, 16, seed=9)) for p in pair]


def prefix() -> list[Body]:
    """A long prompt, the same again, and one that goes on from it."""
    known = prompts(1, 2 * CHUNK + 44, seed=14)[0]
    longer = known + prompts(1, 8, seed=10)[0]
    return [body(prompt) for prompt in (known, known, longer)]


def streams() -> list[Body]:
    return [body(prompt) for prompt in prompts(2, 16, seed=12)]


def seeds() -> list[Body]:
    """Many prompts, one token each: what counts is the seed after the prefill."""
    one = {"max_new_tokens": 1}
    return [body(prompt, one) for prompt in prompts(48, 12, seed=15)]


def staying() -> list[Body]:
    """Those that wait for their answers while others leave."""
    return [body(prompt) for prompt in prompts(4, 16, seed=21)]


def gone() -> list[Body]:
    """Those that leave long before their answers end."""
    long = {"max_new_tokens": GONE_TOKENS}
    return [body(prompt, long) for prompt in prompts(6, 16, seed=20)]


GONE_TOKENS = 300


def paused(rank: int) -> list[Body]:
    """Under way when a rank stops; the first is streamed, and longer."""
    longer, *others = prompts(4, 16, seed=30 + rank)
    return [body(longer, {"max_new_tokens": 96}), *map(body, others)]


DISTURBED = {
    "staying": staying(),
    "paused1": paused(1),
    "paused0": paused(0),
}


def after() -> list[Body]:
    """All that was disturbed, asked again in peace."""
    return [item for bodies in DISTURBED.values() for item in bodies]


# One at a time first: a cached prefix that a varying batch has computed would differ in
# its last bits.
SCENARIOS = (
    Scenario("alone", fixed(alone)),
    Scenario("seeds", fixed(seeds)),
    Scenario("logprobs", fixed(logprobs)),
    Scenario("penalties", fixed(penalties)),
    Scenario("bias", bias),
    Scenario("grammar", fixed(grammar)),
    Scenario("stops", stops),
    Scenario("lengths", fixed(lengths)),
    Scenario("to_the_limit", fixed(to_the_limit)),
    Scenario("sampled", fixed(sampled)),
    Scenario("prefix", fixed(prefix)),
    Scenario("together", fixed(together), concurrency=8),
    Scenario("chunked", fixed(chunked), concurrency=4),
    Scenario("streams", fixed(streams), concurrency=2, streamed=True),
)
# Asked again once the server has been disturbed.
AFTER = Scenario("after", fixed(after), concurrency=4)


def with_rids(name: str, bodies: Sequence[Body]) -> list[Body]:
    """The bodies with request ids `name/0`, `name/1`, …"""
    return [item | {"rid": f"{name}/{i}"} for i, item in enumerate(bodies)]


# Of the arms whose number of steps adapts: requests one at a time, and many at once.
ADAPTIVE_NAMES = ("alone", "together")


def named(names: Sequence[str]) -> list[Scenario]:
    """The scenarios with these names, in their own order."""
    return [scenario for scenario in SCENARIOS if scenario.name in names]
