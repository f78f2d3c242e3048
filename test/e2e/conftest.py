"""Real servers on the CPU engine."""

from __future__ import annotations

import pytest

from scripts.small_model.serve import SmallServers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> SmallServers:
    """`with servers.launch(tp=2, args=[...]) as running:` serves a small model."""
    return SmallServers(tmp_path_factory.mktemp("servers"))
