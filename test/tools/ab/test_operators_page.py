"""The operators' page against what the repository has."""

from __future__ import annotations

import re

from sglang.srt.layers.vocab_parallel_draft_eligibility import DenseReason

from scripts.ab.__main__ import parse_args
from scripts.ab.profile import profile_names
from scripts.serving.cpu_engine import ROOT

PAGE = (ROOT / "docs" / "operators.md").read_text()


def first_cells(heading: str) -> list[str]:
    """The names in the first column of the table whose head starts with `heading`."""
    table = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    return [
        name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    ]


def test_profiles_are_all_there() -> None:
    """Red when a profile is renamed, added or dropped and the page is not."""
    assert sorted(first_cells("profile")) == profile_names()


def test_reasons_exist() -> None:
    """Red when the page explains a reason that the fork no longer gives."""
    named = set(first_cells("reason"))
    assert len(named) > 5 and named <= {reason.value for reason in DenseReason}


def test_options_are_taken() -> None:
    """Red when an option on the page is not one of the kit's."""
    options = {word for cell in first_cells("option") for word in cell.split()}
    options = {word for word in options if word.startswith("--") and word != "--"}
    values = {"--concurrency": "1", "--requests": "1", "--tp": "2", "--port": "1"}
    values |= {"--pairs": "5", "--stop-after": "1"}
    flags = {"--null", "--fresh"}
    for option in options - {"--mem-fraction-static"}:
        argv = [option] if option in flags else [option, values.get(option, "x")]
        parse_args(["cpu-small", *argv])
    assert "--dataset" in options and "--out" in options
