"""Tests run against the built fork, never against a stock installation by mistake."""

import importlib.util
import os
from pathlib import Path

import pytest

# A hook: how many GPU tests a run skipped, and why.
from scripts.skip_summary import pytest_terminal_summary  # noqa: F401

# `make faults` tests a copy of the fork that has a fault in it.
FORK = Path(
    os.environ.get("VPDRAFT_FORK") or Path(__file__).parents[1] / "build" / "fork"
).resolve()


def pytest_configure(config: pytest.Config) -> None:
    spec = importlib.util.find_spec("sglang")
    origin = Path(spec.origin).resolve() if spec and spec.origin else None
    if origin is None or FORK not in origin.parents:
        pytest.exit(
            f"sglang is {origin or 'not installed'}, not the fork in {FORK}; "
            "run `make test`, or `make fork` and put build/fork first on PYTHONPATH",
            returncode=4,
        )


OURS = ("SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH", "SGLANG_VOCAB_PARALLEL_DRAFT_TABLE")


def _settings() -> dict[str, str]:
    return {name: os.environ[name] for name in OURS if name in os.environ}


@pytest.fixture(autouse=True)
def no_setting_is_left_behind(request: pytest.FixtureRequest):
    """A test that leaves a variable behind changes every server that starts after it;
    ``override`` of SGLang's environment does so when its body raises."""
    before = _settings()
    yield
    left = {name for name, _ in _settings().items() ^ before.items()}
    for name in left:
        os.environ.pop(name, None)
        if name in before:
            os.environ[name] = before[name]
    assert not left, f"{request.node.nodeid} left {sorted(left)} changed"
