"""The table of planted faults fits the fork; `make faults` runs it."""

from __future__ import annotations

import ast
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.planted_faults import __main__ as command
from scripts.planted_faults.run import ROOT, Outcome, link_tree, planted
from scripts.planted_faults.table import Fault, FaultError, load

FAULTS = load()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_fits_the_fork(fault: Fault) -> None:
    """Red when the code that a fault is planted in has changed, or when the planted
    source is no Python."""
    # A run of `make faults` has another fault in its copy: look at the sound fork.
    source = (ROOT / "build" / "fork" / fault.file).read_text()
    changed = fault.apply(source)
    assert changed != source
    ast.parse(changed)


@pytest.mark.parametrize(
    "node", sorted({test for fault in FAULTS for test in fault.tests})
)
def test_named_test_exists(node: str) -> None:
    """Red when a test that a fault names is renamed: pytest would report an error of
    its own, which the table must not take for a red test."""
    file, *names = node.split("::")
    module = ROOT / file
    # Cases may be inherited from a kit.
    kits = (ROOT / "python" / "sglang" / "test" / "kits").glob("*.py")
    sources = [path.read_text() for path in (module, *kits)]
    for name in names:
        defined = re.compile(rf"^\s*(?:class|def) {name.split('[')[0]}\b", re.MULTILINE)
        assert any(map(defined.search, sources)), f"{file} has no {name}"


def test_a_fault_reaches_the_copy_alone(tmp_path: Path) -> None:
    """Red when a fault is written through a hard link, or is left behind."""
    tree = tmp_path / "tree"
    (tree / "package").mkdir(parents=True)
    module = tree / "package" / "module.py"
    module.write_text("value = 1\n")
    link_tree(tree, tmp_path / "copy")
    copied = tmp_path / "copy" / "package" / "module.py"
    assert os.path.samefile(module, copied)
    fault = Fault("f", "unit", "package/module.py", "= 1", "= 2", ("test",))
    with planted(fault, tmp_path / "copy"):
        assert copied.read_text() == "value = 2\n"
        assert module.read_text() == "value = 1\n"
    assert copied.read_text() == "value = 1\n"
    assert os.listdir(copied.parent) == ["module.py"]


def test_a_stale_fault_is_an_error() -> None:
    """Red when a fault that no longer fits is skipped, or planted in two places."""
    fault = Fault("f", "unit", "module.py", "a", "b", ("test",))
    for source in ("", "a a"):
        with pytest.raises(FaultError, match="module.py"):
            fault.apply(source)


def test_a_fault_that_no_test_sees_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    """Red when a survivor, or a run that could not tell, counts as found."""
    fault = replace(FAULTS[0], name="planted")
    tree = tmp_path / "tree"
    (tree / fault.file).parent.mkdir(parents=True)
    (tree / fault.file).write_text(fault.find)
    monkeypatch.setattr(command, "BUILD", tmp_path / "faults")
    monkeypatch.setattr(command, "load", lambda: [fault])
    monkeypatch.setattr("sys.argv", ["planted_faults", "--fork", str(tree)])
    for verdict, code in (("red", 0), ("green", 1), ("broken", 1)):
        verdicts = iter(["green", verdict])
        monkeypatch.setattr(
            command, "run_tests", lambda *_: Outcome(next(verdicts), 0.0, "")
        )
        assert command.main() == code
        assert f"{1 - code} of 1" in capsys.readouterr().out
