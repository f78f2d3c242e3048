"""The no-upstream-code check: planted copies are caught, our own code is not."""

import subprocess

import pytest

UPSTREAM = '''\
"""Opening hours."""
import os
from shop import (
    door,
    till,
)

def hours(shop, day):
    """When it is open."""
    # From the sign on the door.
    opening = shop.sign.read(day)
    if day in shop.holidays:
        return None

    closing = opening + shop.hours_open(
        day,
    )
    return opening, closing


class Shop:
    def guests(self, day):
        return [guest for guest in self.book if guest.day == day]
'''


@pytest.fixture
def shop(workshop):
    workshop.upstream({"hours.py": UPSTREAM, "run.sh": "set -e\na\nb\nc\nd\ne\n"})
    subprocess.run(["git", "init", "-q", workshop.root], check=True)
    workshop.write(".gitignore", "/build/\n")
    return workshop


def problems(shop):
    code, output = shop.run("check")
    found = [line for line in output.splitlines() if "repeats upstream's" in line]
    assert (code == 1) == bool(found), output
    return found


def test_a_repository_of_our_own_passes(shop):
    """Red when the check objects to anything at all."""
    shop.write(
        "python/sglang/ours.py", "def f(a):\n    b = a\n    c = b\n    return c\n"
    )
    assert problems(shop) == []


@pytest.mark.parametrize(
    "path, text",
    [
        ("python/sglang/copy.py", UPSTREAM),
        ("test/test_it.py", "x = 1\n" + UPSTREAM.replace("    ", "\t")),
        ("docs/page.md", f"Text.\n```python\n{UPSTREAM}```\n"),
        ("notes", "\n".join(UPSTREAM.splitlines()[9:])),
        ("run.sh", "e\n\na\n# Note.\nb   # more\nc\nd\ne\n"),
    ],
)
def test_a_planted_run_of_lines_is_caught(shop, path, text):
    """Red when indentation, comments, blank lines or the file's kind hide a copy."""
    shop.write(path, text)
    (found,) = problems(shop)
    assert found.split("fork check: ")[-1].startswith(f"{path}:")
    assert "a run of" in found and "upstream's sglang/" in found


def test_a_planted_function_in_another_layout_is_caught(shop):
    """Red when joining lines and a new name make a copy unseen."""
    shop.write(
        "python/sglang/copy.py",
        "def times(shop, day):\n"
        "    opening = shop.sign.read(\n        day\n    )\n"
        "    if day in shop.holidays: return None\n"
        "    closing = opening + shop.hours_open(day); return opening, closing\n",
    )
    (found,) = problems(shop)
    assert "copy.py:2: the body of times repeats upstream's sglang/hours.py" in found


def test_a_planted_function_in_an_edit_is_caught(shop):
    """Red when code can come in through an insert."""
    body = [x for x in UPSTREAM.splitlines()[7:19] if x.strip() and "#" not in x]
    insert = "\n".join(body).replace("(\n        day,\n    )", "(day)")
    shop.edit("hours.py", anchor={"defines": "Shop"}, op="before", insert=insert)
    shop.run("lock")
    (found,) = problems(shop)
    assert "python/edits/hours.toml:" in found and "the body of hours" in found


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(UPSTREAM.splitlines()[2:7]) * 2,  # imports and brackets only
        "set -e\na\nb\nc\n",  # four lines
        "a\nb\nx\nc\nd\ne\n",  # interrupted
        "def f(self, day):\n" + UPSTREAM.splitlines()[-1] + "\n",  # one statement
    ],
)
def test_what_is_no_copy_passes(shop, text):
    """Red when the check objects to less than five lines or three statements."""
    shop.write("python/other.py", text)
    assert problems(shop) == []


def test_ignored_files_do_not_count_but_untracked_ones_do(shop):
    """Red when build outputs are searched, or a file escapes by not being added."""
    shop.write("build/fork/copy.py", UPSTREAM)
    assert problems(shop) == []
    shop.write("copy.py", UPSTREAM)
    assert len(problems(shop)) == 1


def test_a_folder_without_git_is_searched_too(shop):
    """Red when an unpacked archive of the repository always passes."""
    (shop.root / ".git").rename(shop.root.parent / "git")
    shop.write("copy.py", UPSTREAM)
    assert len(problems(shop)) == 1


def allow(shop, **entry):
    text = "[[allowed]]\n" + "".join(f'{k} = "{v}"\n' for k, v in entry.items())
    shop.write("scripts/fork/allowed_repeats.toml", text)


def test_a_reviewed_repeat_passes_until_it_changes(shop):
    """Red when an allowance covers more than what was reviewed, or lives for ever."""
    shop.write("copy.sh", "a\nb\nc\nd\ne\n")
    (found,) = problems(shop)
    key = found.split('hash = "')[1].rstrip('"')
    allow(shop, path="copy.sh", reason="An interface.", hash=key)
    assert problems(shop) == []
    shop.write("copy.sh", "set -e\na\nb\nc\nd\ne\n")
    code, output = shop.run("check")
    assert code == 1 and "a run of 6 lines" in output
    assert f"copy.sh no longer repeats what hash {key} allows" in output


def test_an_allowance_needs_a_reason(shop):
    """Red when a repeat is allowed without saying why."""
    allow(shop, path="copy.sh", reason=" ", hash="0")
    code, output = shop.run("check")
    assert code == 1 and "an entry needs path, reason and hash" in output
