"""The lock: an anchor that still matches beside changed code stops the tool."""

import ast
import json
import shutil

import pytest
from fork import syntax

UPSTREAM = """\
def step(self, batch):
    first = load(batch)
    if batch.idle:
        return None
    elif batch.late:
        second = wait(first)
    else:
        second = first
    return second
"""


@pytest.fixture
def locked(workshop):
    """A repository with a locked edit of each kind of place, and a checkout."""
    workshop.upstream({"m.py": UPSTREAM})
    place = {"scope": "step", "insert": "new()"}
    workshop.edit("m.py", name="after", **place, op="after", anchor={"calls": "load"})
    arm = {"scope": "step", "anchor": {"if": ["batch.late"]}}
    workshop.edit("m.py", name="arm", **arm, op="elif_after", insert="elif x:\n    y")
    workshop.edit("m.py", name="top", **place, op="body_first")
    workshop.edit("m.py", name="end", **arm, op="body_last", insert="z = 1")
    code, output = workshop.run("lock")
    assert code == 0 and output.count("added") == 4, output
    package = next((workshop.root / "build/pristine").glob("*/sglang"))
    shutil.copytree(package, workshop.root / "build/checkout/python/sglang")
    return workshop


def check(workshop, old, new):
    path = workshop.root / "build/checkout/python/sglang/m.py"
    path.chmod(0o644)
    path.write_text(UPSTREAM.replace(old, new))
    return workshop.run("check", "--tree", workshop.root / "build/checkout")


@pytest.mark.parametrize(
    "old, new",
    [
        ("load(batch)", "load(  # a comment\n        batch,\n    )"),
        ("\n    return second", "\n\n    # About it.\n    return second"),
        ('"""', "'''"),
    ],
)
def test_layout_and_comments_do_not_count(locked, old, new):
    """Red when a reformatted upstream would stop the tool."""
    code, output = check(locked, old, new)
    assert code == 0, output


@pytest.mark.parametrize(
    "old, new, edits, role",
    [
        ("load(batch)", "load(batch, 1)", ["after", "top"], "anchored|in the body"),
        ("if batch.idle", "if batch.empty", ["after", "arm", "end"], "anchored|after"),
        ("wait(first)", "wait(0)", ["arm", "end"], "in the body beside"),
        ("second = first", "second = 0", ["after", "arm", "end"], "anchored|after"),
        ("return second", "return first", ["arm", "end"], "after the anchor"),
        ("    first = load", "    extra()\n    first = load", ["after"], "before"),
        ("self, batch", "self, batch, *more", ["top"], "anchored"),
    ],
)
def test_what_moved_is_named(locked, old, new, edits, role):
    """Red when a neighbour's change passes, or the message does not show it."""
    code, output = check(locked, old, new)
    assert code == 1
    for name in edits:
        lines = [
            x for x in output.split("\n") if f"m.toml [{name}] sglang/m.py, step" in x
        ]
        assert any(word in x for x in lines for word in role.split("|")), output
    assert "\n    + " in output and "\n    - " in output


def test_old_and_new_source_of_a_neighbour_are_shown(locked):
    """Red when a person must look up what the neighbour was."""
    code, output = check(locked, "wait(first)", "wait(0)")
    assert "    - second = wait(first)\n    + second = wait(0)\n" in output


def test_a_neighbour_of_another_kind(locked):
    """Red when the message no longer says that the neighbour is another statement."""
    code, output = check(locked, "return second", "assert second")
    assert "moved: it was Return, now it is Assert" in output


def test_an_unlocked_edit_builds_but_does_not_pass(locked):
    """Red when an edit nobody reviewed passes check, or a first build needs a lock."""
    locked.edit("m.py", scope="step", anchor={"calls": "load"}, op="before", insert="q")
    assert "1 edits are not in the lock yet" in locked.build()
    code, output = locked.run("check")
    assert code == 1 and "[edit-5] sglang/m.py, step: not in the lock" in output


def test_a_stale_lock_entry_stops(locked):
    """Red when the lock keeps entries of edits that are gone."""
    locked.clear_edits()
    code, output = locked.run("check")
    assert code == 1 and "lock.json: m.py [arm] has no edit any more" in output
    code, output = locked.run("lock")
    assert code == 0 and "removed  m.py [arm]" in output
    assert locked.run("check")[0] == 0


def test_rewriting_says_what_changed(locked):
    """Red when a lock is rewritten without a word about which places moved."""
    path = locked.project.lock
    lock = json.loads(path.read_text())
    lock["m.py"]["arm"]["inside"] = "Assign:0000000000000000"
    path.write_text(json.dumps(lock))
    code, output = locked.run("build")
    assert code == 1 and "[arm]" in output and "in the body" in output
    code, output = locked.run("lock")
    assert code == 0 and "changed  m.py [arm]: inside" in output
    assert locked.run("lock") == (0, "the lock is unchanged\n")


def test_the_lock_holds_no_upstream_code(locked):
    """Red when source or names of upstream are written into the repository."""
    text = locked.project.lock.read_text()
    for word in ("batch", "load", "second", "wait"):
        assert word not in text


@pytest.mark.parametrize(
    "source, expected",
    [
        ("f'{a!r:>{w}} {b}' + u'x'", "Expr:eff34a9d2cb7f1d5"),
        (
            "def f(a, /, b: int = 2, *c, d=1, **e) -> x: pass",
            "FunctionDef:720beb98734d8924",
        ),
        ("x = lambda a, *b: (yield)", "Assign:68ec33ac761c0126"),
        ("class A(B, metaclass=C): pass", "ClassDef:acaee4a3a86f2395"),
        ("match a:\n case {'k': [1, *_], **r} if r: pass", "Match:d3277dd13b965aa9"),
        ("for i in a:\n def g(x): return x\nelse: pass", "For:e04e840722f9adc4"),
        ("if a: pass\nelif b: pass\nelse: pass", "If:a47e2d8ec2789f8f"),
    ],
)
def test_fingerprints_are_equal_on_every_python(source, expected):
    """Red when a Python version writes a tree that another hashes differently.

    Python 3.12.1 puts an empty text into the first one, 3.12 and up type parameters
    into definitions.
    """
    assert syntax.fingerprint(ast.parse(source).body[0]) == expected
