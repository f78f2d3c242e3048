"""The Makefile: what it offers is what it has."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", TEXT, re.M))


def test_every_target_is_phony():
    """Red when a file or folder of a target's name would keep it from running."""
    joined = TEXT.replace("\\\n", " ")
    phony = re.findall(r"^\.PHONY: (.+)$", joined, re.M)
    assert len(phony) == 1
    assert set(phony[0].split()) == TARGETS


def test_help_names_every_target():
    """Red when a target is added that nobody is told of, or one is told of that is gone."""
    # Under `make test` this is a sub-make, which would also print its directory.
    command = ["make", "--no-print-directory", "help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    words = re.sub(r"\(.*?\)|[A-Z_]+=", "", done.stdout)
    named = set()
    for line in words.splitlines():
        parts = line.removeprefix("make ").split("|")
        first = [parts[0].split()[0]] if len(parts) == 1 else parts
        named |= {part.strip() for part in first}
    assert named == TARGETS - {"help"}
