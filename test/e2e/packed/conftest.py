"""One recording per arm for all tests of this folder, made when first asked for.

With `VPDRAFT_RECORDINGS=folder` recordings are kept there and used again: to work on
the tests, or to look at what a server did.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from engine_arms.arms import ARMS, Arm  # noqa: E402
from engine_arms.recording import Recording, load, record  # noqa: E402
from engine_arms.scenarios import ADAPTIVE_NAMES, named  # noqa: E402
from scripts.serving import cpu_engine  # noqa: E402
from scripts.serving.arms import FLAG  # noqa: E402

_made: list[Recording] = []


def _record(arm: Arm, factory: pytest.TempPathFactory, **options: Any) -> Recording:
    kept = os.environ.get("VPDRAFT_RECORDINGS")
    folder = Path(kept, arm.name) if kept else factory.mktemp(arm.name)
    try:
        recording = load(arm, folder)
    except FileNotFoundError:
        recording = record(arm, folder, **options)
    _made.append(recording)
    return recording


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Recording]:
    """`recorded(arm, **options)`: the recording of an arm of a test's own."""
    return lambda arm, **options: _record(arm, tmp_path_factory, **options)


@pytest.fixture(scope="session")
def adaptive(recorded, tmp_path_factory) -> Callable[..., Recording]:
    """`adaptive(name, mode, config, *args)`: the recording of an arm whose number of
    steps adapts, by SGLang's configuration `config`, with the flag at `mode`."""

    def recording(name: str, mode: str, config: dict, *args: str) -> Recording:
        path = tmp_path_factory.mktemp(name) / "adaptive.json"
        path.write_text(json.dumps(config))
        steps = ("--speculative-adaptive", "--speculative-adaptive-config", str(path))
        arm = Arm(f"{name}-{mode}", cpu_engine.FORK, (*steps, *args, FLAG, mode))
        return recorded(arm, scenarios=named(ADAPTIVE_NAMES), disturbed=False)

    return recording


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The fork without the flag."""
    return _record(ARMS["dense"], tmp_path_factory)


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The fork with the flag on."""
    return _record(ARMS["packed"], tmp_path_factory)


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The installed SGLang."""
    return _record(ARMS["stock"], tmp_path_factory, disturbed=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Where the time of the recordings went."""
    for recording in _made:
        slowest = sorted(recording.seconds.items(), key=lambda item: -item[1])[:6]
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest)
        terminalreporter.write_line(f"recording {recording.arm}: {parts}")
