"""What is recorded, and how it is read back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

SEED, CHAIN, EXTEND = "seed", "chain", "extend"
_FILE = "rank{}.jsonl"


@dataclass(frozen=True)
class Forward:
    """One forward of the draft model.

    `input_ids` and `positions` are those it was given; `token_ids`, `logits` (FP32)
    and `logsumexp` describe the largest logit of each row of its output. The dense
    path has no log-sum-exp, so that the recorder takes it in FP64; `equal_best` counts
    the tokens whose FP32 softmax equals the largest, 0 where there is no row of
    logits to look at (packed).
    """

    input_ids: list[int]
    positions: list[int]
    token_ids: list[int]
    logits: list[float]
    logsumexp: list[float]
    equal_best: list[int]


@dataclass(frozen=True)
class Event:
    """One call of a drafting site with the requests of its rows.

    `site` is `seed` (after a prefill), `chain` (the draft decode loop) or `extend`
    (after a verify, accepted rows selected). `token_ids` is `[requests, topk]`, for
    a chain `[requests, drafts]`; `topk_p` is `[requests * topk]`, empty for a chain.
    `positions_after` are the positions that a chain leaves behind, `accept_lens` the
    accepted tokens, bonus included, that an extend selects rows by, and `selected` the
    token ids, logits and log-sum-exps of its output once it has. `packed_modules`
    are the fork's modules that this process has imported; `packed` tells whether the
    draft worker holds the packed path. Where the server collects them, `probability`
    are those that a seed or an extend hands on with its tokens, and `verified` those of
    the chain that was verified before an extend, `[requests, drafts]`.
    """

    site: str
    rids: list[str]
    forwards: list[Forward]
    token_ids: list[list[int]]
    topk_p: list[float]
    positions_after: list[int]
    accept_lens: list[int]
    selected: list[list]
    packed: bool
    packed_modules: list[str]
    probability: list[list[float]] = field(default_factory=list)
    verified: list[list[float]] = field(default_factory=list)

    def to_json(self) -> str:
        """One line; floats survive exactly."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Event:
        """The reverse of `to_json`."""
        record = json.loads(line)
        forwards = [Forward(**forward) for forward in record.pop("forwards")]
        return cls(forwards=forwards, **record)


class EventFile:
    """Appends the events of one rank; every line is whole as soon as it is there."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / _FILE.format(rank)).open("w", buffering=1)

    def append(self, event: Event) -> None:
        """Write one event."""
        self._file.write(event.to_json() + "\n")


def read_events(folder: Path) -> list[list[Event]]:
    """Events of each rank, in rank order; a line cut by a kill is left out.

    Raises FileNotFoundError when no rank has written.
    """
    ranks = []
    for rank in range(len(list(folder.glob(_FILE.format("*"))))):
        text = (folder / _FILE.format(rank)).read_text()
        whole = text[: text.rfind("\n") + 1]
        ranks.append([Event.from_json(line) for line in whole.splitlines()])
    if not ranks:
        raise FileNotFoundError(f"no recorded events in {folder}: no plugin?")
    return ranks
