"""Two cores are shared with everything else that runs."""

import sys
from pathlib import Path

import pytest
import torch

# The tests share `attention_reference.py`, which lies beside them.
sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(autouse=True, scope="session")
def _few_threads() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
