"""Clients that leave and ranks that stop do not change other answers."""

from __future__ import annotations

import pytest
from draft_recorder.events import EXTEND

from engine_arms.disturbances import PAUSE_S
from engine_arms.recording import Recording
from engine_arms.scenarios import DISTURBED, GONE_TOKENS

ARMS = ["dense", "packed"]


@pytest.mark.parametrize("arm", ARMS)
def test_right_answers(request: pytest.FixtureRequest, arm: str) -> None:
    """Red when an answer given while clients left or a rank stood still differs from
    the same request's answer in peace, or when the server does not recover."""
    recording: Recording = request.getfixturevalue(arm)
    disturbed = [ids for name in DISTURBED for ids in recording.ids(name)]
    assert disturbed == recording.ids("after")


@pytest.mark.parametrize("arm", ARMS)
def test_clients_had_left(request: pytest.FixtureRequest, arm: str) -> None:
    """Red when nothing was aborted: the requests of those who left end early."""
    recording: Recording = request.getfixturevalue(arm)
    tokens: dict[str, int] = {}
    for event in recording.events[0]:
        if event.site == EXTEND:
            for rid, accepted in zip(event.rids, event.accept_lens):
                tokens[rid] = tokens.get(rid, 0) + accepted
    gone = [count for rid, count in tokens.items() if rid.startswith("gone/")]
    assert gone and max(gone) < GONE_TOKENS


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("name", ["paused0", "paused1"])
def test_rank_had_stopped(request: pytest.FixtureRequest, arm: str, name: str) -> None:
    """Red when the pause hit no generation: the stream stands still for as long."""
    recording: Recording = request.getfixturevalue(arm)
    assert recording.answers[name][0]["longest_gap_s"] > 0.75 * PAUSE_S
