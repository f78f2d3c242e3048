"""Tests run against the built fork, never against a stock installation by mistake."""

import importlib.util
from pathlib import Path

import pytest

FORK = Path(__file__).resolve().parent.parent / "build" / "fork"


def pytest_configure(config: pytest.Config) -> None:
    spec = importlib.util.find_spec("sglang")
    origin = Path(spec.origin).resolve() if spec and spec.origin else None
    if origin is None or FORK not in origin.parents:
        pytest.exit(
            f"sglang is {origin or 'not installed'}, not the fork in build/fork; "
            "run `make test`, or `make fork` and put build/fork first on PYTHONPATH",
            returncode=4,
        )
