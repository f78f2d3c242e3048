"""`make families` without a server: its catalogue, its checks, its documents."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import pytest

from scripts.families import __main__ as command
from scripts.families import document, reasons, store
from scripts.families.catalog import EVERYTHING, FAMILIES, UNIT_CASES
from scripts.families.compare import faults, family_row
from scripts.families.serve import Exchange, Served
from scripts.serving import Completion, ServerError
from sglang.srt.layers.vocab_parallel_draft_eligibility import (
    DenseReason,
    DraftFacts,
    dense_reason,
)

ROOT = Path(__file__).resolve().parents[2]
EAGLE3 = FAMILIES["eagle3"]
WIDE = dataclasses.replace(FAMILIES["eagle-tree"], facts={"topk": 17})


def served(family, packed: bool) -> Served:
    """An arm as it should be."""
    answer = Completion(
        output_ids=list(range(family.tokens)),
        accept_length=2.0,
        verify_rounds=3,
        proposed_drafts=9,
        latency_s=1.0,
        correct_histogram=[1, 2, 0, 1],
    )
    status = None
    if packed:
        status = {"mode": "on", "path": family.path, "vocab_size": 512}
        if family.reason:
            status["reason"] = family.reason
    short = packed and family.path == "packed"
    exchange = Exchange(10, 10, 960 if short else 80000, True)
    answers = [copy.deepcopy(answer) for _ in range(8)]
    return Served(answers[:4], answers[4:], status, exchange)


def changed(arm: Served, **fields) -> Served:
    return dataclasses.replace(arm, **fields)


def answers(arm: Served, where: str, **fields) -> Served:
    """The first answer of a phase replaced."""
    first, *rest = getattr(arm, where)
    return changed(arm, **{where: [dataclasses.replace(first, **fields), *rest]})


@pytest.mark.parametrize("family", [EAGLE3, WIDE], ids=["packed", "dense"])
def test_arms_that_agree(family) -> None:
    """Red when a sound pair is refused."""
    assert faults(family, served(family, False), served(family, True)) == []


@pytest.mark.parametrize(
    ("break_on", "fault"),
    [
        (lambda on: answers(on, "together", output_ids=[1] * 40), "other tokens"),
        (lambda on: answers(on, "alone", correct_histogram=[4]), "other accept"),
        (lambda on: answers(on, "together", correct_histogram=[4]), "other accept"),
        (lambda on: answers(on, "alone", correct_histogram=None), "no accept"),
        (lambda on: changed(on, status={"path": "dense", "reason": "topk"}), "path"),
        (lambda on: changed(on, status=None), "path and reason"),
        (
            lambda on: changed(on, exchange=Exchange(10, 20, 960, True)),
            "20 vocabulary collectives in 10 draft steps",
        ),
        (
            lambda on: changed(on, exchange=Exchange(10, 10, 960, False)),
            "ranks counted different",
        ),
        (
            lambda on: changed(on, exchange=Exchange(10, 10, 80000, True)),
            "80000 bytes with the flag on",
        ),
        (lambda on: changed(on, exchange=Exchange(9, 9, 90, True)), "another number"),
        (lambda on: changed(on, exchange=Exchange(0, 0, 0, True)), "0 draft steps"),
    ],
)
def test_arms_that_differ(break_on, fault: str) -> None:
    """Red when a check of `make families` is lost: each of these passes then."""
    on = break_on(served(EAGLE3, True))
    found = faults(EAGLE3, served(EAGLE3, False), on)
    assert any(fault in text for text in found), found


def test_comparisons_that_mean_nothing() -> None:
    """Red when degenerate outputs or drafts that are never accepted pass."""
    arms = [served(EAGLE3, packed) for packed in (False, True)]
    same = [answers(arm, "alone", output_ids=[1] * 40) for arm in arms]
    assert any("1 distinct" in fault for fault in faults(EAGLE3, *same))
    for arm in arms:
        for answer in arm.answers:
            object.__setattr__(answer, "accept_length", 1.1)
    assert faults(EAGLE3, *arms) == ["accept length 1.10: says little"]


def test_a_family_whose_steps_vary() -> None:
    """Red when the histogram of a batch whose steps follow the load is compared, or
    that of single requests is not."""
    family = dataclasses.replace(EAGLE3, varies=True)
    off, on = served(EAGLE3, False), served(EAGLE3, True)
    assert faults(family, off, answers(on, "together", correct_histogram=[4])) == []
    assert faults(family, off, answers(on, "alone", correct_histogram=[4])) != []


def test_rows() -> None:
    """Red when a row loses a field, or shows bytes of a path that was not taken."""
    row = family_row("eagle3", EAGLE3, served(EAGLE3, False), served(EAGLE3, True))
    assert row == {
        "family": "eagle3",
        "layout": "TP 2, own head over 500 of 1003 tokens, 256 and 244",
        "path": "packed",
        "reason": None,
        "tested_by": EAGLE3.tested_by,
        "packed_bytes_per_step": 96.0,
        "dense_bytes_per_step": 8000.0,
        "accept_length": 2.0,
    }
    row = family_row("wide", WIDE, served(WIDE, False), served(WIDE, True))
    assert (row["path"], row["reason"]) == ("dense", "topk")
    assert row["packed_bytes_per_step"] is None


def test_every_reason_has_a_case() -> None:
    """Red when a reason is new or gone, or its facts give another one."""
    assert set(reasons.REASONS) == set(DenseReason)
    for reason, case in reasons.REASONS.items():
        if case.facts is not None:
            assert dense_reason(DraftFacts(**case.facts)) is reason
        for test in case.served_by:
            assert test == EVERYTHING or (ROOT / test).is_file()


def test_every_reason_is_explained() -> None:
    """Red when a reason is given that a user cannot look up."""
    page = (document.DOCS / "fallback-reasons.md").read_text()
    for reason in DenseReason:
        assert page.count(f"| `{reason.value}` |") == 1, reason


def test_reasons_are_listed_in_the_order_of_the_function() -> None:
    """Red when the page gives another order than the one reasons are looked for in."""
    cases = [(r, c.facts) for r, c in reasons.REASONS.items() if c.facts is not None]
    for place, (reason, facts) in enumerate(cases):
        for _, later in cases[place + 1 :]:
            both = DraftFacts(**(later | facts))
            assert dense_reason(both) is reason, (facts, later)


def test_the_page_is_what_the_rows_and_the_function_say() -> None:
    """Red when docs/families.md is stale: the recorded rows, the catalogue or the
    eligibility function changed. `make families-record` writes it anew."""
    rows = document.recorded_rows()
    assert document.PAGE.read_text() == document.render(rows)
    named = {row["family"]: row for row in rows}
    assert list(named) == [name for name in FAMILIES if name in named]
    for name, row in named.items():
        family = FAMILIES[name]
        assert (row["path"], row["reason"]) == (family.path, family.reason)
        assert row["layout"] == f"TP {family.tp}, {family.layout}"
        assert row["tested_by"] == family.tested_by


def test_rows_are_recorded_one_by_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Red when recording some families loses the others, keeps an old row, leaves the
    page stale, or shows a family that was never run as one that was."""
    monkeypatch.setattr(document, "ROWS", tmp_path / "families.json")
    monkeypatch.setattr(document, "PAGE", tmp_path / "families.md")

    def row(name: str, accept_length: float) -> dict:
        family = FAMILIES[name]
        arms = served(family, False), served(family, True)
        return family_row(name, family, *arms) | {"accept_length": accept_length}

    document.record([row("eagle-tree", 1.5), row("eagle3", 1.5)])
    document.record([row("eagle3", 3.25)])
    kept = [(r["family"], r["accept_length"]) for r in document.recorded_rows()]
    assert kept == [("eagle-tree", 1.5), ("eagle3", 3.25)]
    lines = document.PAGE.read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("| eagle3 |")]
    assert "| packed | 96 | 8000 | 3.25 |" in line
    (line,) = [line for line in lines if line.startswith("| eagle-tree |")]
    assert "| packed | 96 | 8000 | 1.50 |" in line
    (line,) = [line for line in lines if line.startswith("| mimo-v2 |")]
    assert "| packed | not recorded | not recorded | not recorded |" in line


def test_tests_that_are_named_exist() -> None:
    """Red when a row points to a test that is gone."""
    for family in (FAMILIES | UNIT_CASES).values():
        assert family.tested_by == EVERYTHING or (ROOT / family.tested_by).is_file()


class StubKitchen:
    """Serves at once; fails for one family."""

    def __init__(self, folder: Path) -> None:
        self.calls: list[tuple[str, str]] = []

    def family(self, family, flag: str, folder: Path) -> Served:
        name = folder.parent.name
        self.calls.append((name, flag))
        if name == "eagle":
            raise ServerError("planted")
        return served(family, flag == "on")


@pytest.fixture
def kitchen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StubKitchen:
    stub = StubKitchen(tmp_path)
    monkeypatch.setattr(command, "BUILD", tmp_path)
    monkeypatch.setattr(command, "Kitchen", lambda models: stub)
    return stub


def test_a_run_goes_on_where_it_was(
    kitchen: StubKitchen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Red when a kept result is served again, one of other sources is kept, or the
    families after a failed one are left out."""
    names = ["eagle", "eagle3", "eagle-tree"]
    assert command.main(["--only", *names]) == command.EXIT_FAULTS
    assert kitchen.calls == [
        ("eagle", "off"),
        *((name, flag) for name in names[1:] for flag in ("off", "on")),
    ]
    rows = json.loads((tmp_path / "families.json").read_text())
    assert [row["family"] for row in rows] == ["eagle3", "eagle-tree", *UNIT_CASES]
    kitchen.calls.clear()
    assert command.main(["--only", "eagle3"]) == 0
    assert kitchen.calls == []
    assert command.main(["--only", "eagle3", "--again"]) == 0
    monkeypatch.setattr(command, "fingerprint", lambda **_: "other")
    assert command.main(["--only", "eagle3"]) == 0
    assert kitchen.calls == [("eagle3", "off"), ("eagle3", "on")] * 2


def test_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    """Red when a family that there is none of is left out without a word."""
    with pytest.raises(SystemExit) as ended:
        command.parse_args(["--only", "eagle9"])
    assert ended.value.code == 2
    told = "--only eagle9: no such family; choose from eagle "
    assert told in capsys.readouterr().err


def test_the_fingerprint_follows_the_sources(tmp_path: Path) -> None:
    """Red when results survive a change of what they depend on."""
    seen = {store.fingerprint(tmp_path)}
    for source in ("python/edits/srt/a.toml", "scripts/families/catalog.py"):
        path = tmp_path / source
        path.parent.mkdir(parents=True)
        for text in ("1", "2"):
            path.write_text(text)
            seen.add(store.fingerprint(tmp_path))
    assert len(seen) == 5
    assert store.fingerprint(tmp_path) in seen
