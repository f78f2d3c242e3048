"""Draft families through the real server, compared with themselves.

What the stand-ins have to get right beyond the chain of an MTP model is exercised here:
trees, reduced draft vocabularies, latent attention, sliding windows with sinks, linear
attention. `make families` compares more of them, and all of them with the flag off.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.families.catalog import FAMILIES, Family
from scripts.families.compare import LEAST_ACCEPT_LENGTH, accept_length, faults
from scripts.families.models import llama, mimo_v2
from scripts.families.serve import Kitchen, Served

# Served without speculation as well: one target and its drafts for each kind of
# attention, mask and state that the stand-ins have.
REFERENCED = (
    *("eagle", "eagle-tree", "eagle3", "eagle3-tree", "standalone", "standalone-tree"),
    *("deepseek", "mimo-v2", "qwen3.5"),
)
# One of each class of worker.
COMPARED = tuple(name for name, family in FAMILIES.items() if family.in_ci)


class Arms:
    """Serves each arm once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kitchen = Kitchen(folder / "models")
        self._served: dict[tuple, Served] = {}

    def family(self, name: str, flag: str) -> Served:
        key = (name, flag)
        if key not in self._served:
            folder = self._folder / name / flag
            served = self._kitchen.family(FAMILIES[name], flag, folder)
            self._served[key] = served
        return self._served[key]

    def reference(self, family: Family) -> Served:
        """The target alone, on one rank, without speculation."""
        key = (family.target,)
        if key not in self._served:
            folder = self._folder / f"reference{len(self._served)}"
            self._served[key] = self._kitchen.serve(
                family.target, 1, [], family.tokens, folder
            )
        return self._served[key]


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    return Arms(tmp_path_factory.mktemp("families"))


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCED)
def test_speculation_changes_no_token(arms: Arms, name: str) -> None:
    """Red if a draft's or a verify's attention, mask, window or state is wrong for the
    family, or its drafts wrong: at TP 2 with speculation, other tokens than at TP 1
    without, or hardly one accepted. Red too if its draft path or its reason changes."""
    family = FAMILIES[name]
    expected = arms.reference(family).ids
    assert min(len(set(ids)) for ids in expected) > family.tokens // 4, "degenerate"
    on = arms.family(name, "on")
    assert on.ids == expected
    assert accept_length(on) > LEAST_ACCEPT_LENGTH
    assert on.status["path"] == family.path
    assert on.status.get("reason") == family.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPARED)
def test_the_flag_changes_nothing_but_bytes(arms: Arms, name: str) -> None:
    """Red if the packed path drafts another token, counts other accepted drafts,
    gathers twice or gathers more than the dense one. (EAGLE3: also if ids are not
    mapped; multi-layer MTP: also if a layer gets another layer's rows.)"""
    off, on = (arms.family(name, flag) for flag in ("off", "on"))
    assert faults(FAMILIES[name], off, on) == []


def test_one_family_of_each_worker_is_compared() -> None:
    """Red if a class of draft worker drops out of the comparison."""
    algorithms = {FAMILIES[name].algorithm for name in COMPARED}
    assert {"EAGLE3", "STANDALONE"} <= algorithms
    targets = {FAMILIES[name].target for name in COMPARED}
    assert {llama.target, mimo_v2.build} <= targets
