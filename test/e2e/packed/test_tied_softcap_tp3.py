"""Another shape of draft: three ranks, a head tied to the embedding, a softcap."""

from __future__ import annotations

import json

import pytest

from engine_arms.arms import ARMS, Arm, prepare_model
from engine_arms.compare import (
    chain_faults,
    compare_forwards,
    compare_seeds,
    differences,
    events_of,
    extend_faults,
    rank_faults,
)
from engine_arms.recording import Recording, record
from engine_arms.scenarios import named
from scripts.small_model.spec import ModelSpec

TIED = ModelSpec(
    vocab_size=1003,
    hidden_size=192,
    num_heads=6,
    num_kv_heads=3,
    tie_word_embeddings=True,
)
TP = 3
# Below the plain largest logit, so that it bends every winner.
SOFTCAP = 10.0
NAMES = ("alone", "together", "seeds")
Pair = tuple[Recording, Recording]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Dense and packed."""
    override = json.dumps({"final_logit_softcapping": SOFTCAP})
    recordings = []
    for name in ("dense", "packed"):
        arm = ARMS[name]
        args = [*arm.args, "--json-model-override-args", override]
        recordings.append(
            record(
                Arm(name, arm.fork, args),
                tmp_path_factory.mktemp(name),
                scenarios=named(NAMES),
                disturbed=False,
                model=prepare_model(TIED),
                tp=TP,
            )
        )
    return recordings[0], recordings[1]


def test_arms(pair: Pair) -> None:
    """Red when the packed path refuses this draft, or when nothing is capped."""
    dense, packed = pair
    assert dense.status is None and packed.status["path"] == "packed"
    for arm in pair:
        forwards = [f for event in arm.events[0] for f in event.forwards]
        assert max(max(f.logits) for f in forwards) <= SOFTCAP
    assert max(len(set(ids)) for ids in dense.ids("alone")) > 8


@pytest.mark.parametrize("name", NAMES)
def test_same_answers(pair: Pair, name: str) -> None:
    """Red when the tied head is read as another one, or capped at another place."""
    dense, packed = pair
    assert differences(packed.answers[name], dense.answers[name]) == []


@pytest.mark.parametrize("name", ["alone", "seeds"])
def test_same_draft_steps(pair: Pair, name: str) -> None:
    """Red when the softcap is left out, comes after the reduction, or is computed with
    another expression than the dense path's; or when a rank's shard is misplaced."""
    dense, packed = (events_of(arm.events[0], name) for arm in pair)
    selection = compare_forwards(dense, packed)
    assert selection.rows > 0 and selection.faults == []
    assert compare_seeds(dense, packed).faults == []


@pytest.mark.parametrize("name", NAMES)
def test_ranks_and_rows(pair: Pair, name: str) -> None:
    """Red when three ranks do not merge the same bytes in the same order, or when rows
    of a batch are mixed up."""
    packed = pair[1]
    assert len(packed.events) == TP
    assert rank_faults(packed.events, name) == []
    assert chain_faults(events_of(packed.events[0], name)) == []
    assert extend_faults(events_of(packed.events[0], name)) == []
