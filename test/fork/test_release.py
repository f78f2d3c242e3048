"""One version: what the changelog and the documents say is what the pins say."""

import re

from fork.pins import Pins
from fork.project import Project

PROJECT = Project()
PINS = Pins.load(PROJECT)


def test_the_changelog_begins_with_the_version_of_the_pins():
    """Red when a release is built that the changelog does not know."""
    text = (PROJECT.root / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (\S+)", text, re.M)
    assert headings[0] == PINS.local_version
    assert len(set(headings)) == len(headings)


def test_install_commands_name_the_pinned_release():
    """Red when the README would install another release beside the fork's wheel."""
    for name in ("README.md", "CONTRIBUTING.md"):
        text = (PROJECT.root / name).read_text()
        assert set(re.findall(r"sglang==([\d.]*\d)", text)) <= {PINS.version}
        assert "vpdraft." not in text


def test_every_supported_python_has_a_pinned_wheel_on_both_machines():
    """Red when `make wheel` would leave out a Python that the tests support."""
    text = (PROJECT.root / "scripts/setup_env.py").read_text()
    found = re.findall(r"\((3), (\d+)\)", text.split("SUPPORTED = ")[1])
    supported = {f"cp{major}{minor}" for major, minor in found}
    assert supported == {"cp311", "cp312"}
    for machine in ("x86_64", "aarch64"):
        assert {name.split("-")[2] for name in PINS.wheel_names(machine)} == supported
