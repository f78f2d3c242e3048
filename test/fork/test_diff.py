"""The upstream diff: git takes it, and it says which lines it replaces."""

import re
import shutil
import subprocess

import pytest

UPSTREAM = {
    "m.py": "".join(f"line_{n} = f({n})\n" for n in range(30)),
    "call.py": "x = f(\n    a,\n    b\n)\ng(a, b)\n",
    "end.py": "x = 1",
    "engine.py": "x = 1\n",
}


@pytest.fixture
def shop(workshop):
    workshop.upstream(UPSTREAM)
    for line in (0, 3, 8, 16, 29):
        workshop.edit(
            "m.py", anchor={"assigns": f"line_{line}"}, op="after", insert=f"a{line}\nb"
        )
    workshop.edit("m.py", anchor={"assigns": "line_0"}, op="before", insert="first")
    workshop.edit("call.py", anchor={"calls": "f"}, op="keyword", insert="c,\nd,")
    workshop.edit(
        "call.py",
        anchor={"calls": "g"},
        op="replace_argument",
        argument=0,
        insert="z",
        why="G wants\n z.",
    )
    workshop.edit("call.py", anchor={"calls": "g"}, op="before", insert="# Above g.")
    workshop.edit("end.py", anchor={"assigns": "x"}, op="after", insert="y = 2")
    workshop.write("python/sglang/new/__init__.py", "")
    workshop.write("python/sglang/new/n.py", "n = 1\nm = 2")
    return workshop


def applied(workshop, *arguments):
    """A checkout of the pristine package after `git apply`."""
    checkout = workshop.root / "build/checkout"
    shutil.rmtree(checkout, ignore_errors=True)
    pristine = next((workshop.root / "build/pristine").glob("*/sglang"))
    shutil.copytree(pristine, checkout / "python/sglang")
    subprocess.run(["git", "init", "-q", checkout], check=True)
    patch = workshop.root / "build/upstream.diff"
    command = ["git", "apply", "--whitespace=nowarn", *arguments, patch]
    subprocess.run(command, cwd=checkout, check=True)
    return checkout / "python/sglang"


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_git_applies_the_diff_and_gives_the_fork_tree(shop):
    """Red when a hunk's counts or places are wrong, or a new file is left out."""
    code, output = shop.run("diff")
    assert code == 0, output
    shop.build()
    assert files(applied(shop)) == files(shop.root / "build/fork/sglang")


def test_registered_tests_are_in_it(shop):
    """Red when the diff for upstream lacks its tests, or has those that stay here."""
    shop.write("test/registered/spec/test_n.py", "n = 1\n")
    shop.write("test/fork/test_n.py", "n = 1\n")
    assert shop.run("diff")[0] == 0
    checkout = applied(shop).parents[1]
    assert (checkout / "test/registered/spec/test_n.py").read_text() == "n = 1\n"
    assert not (checkout / "test/fork").exists()


def test_hunks_fit_without_a_search(shop):
    """Red when a hunk's line numbers are off: git would find its place all the same."""
    shop.run("diff")
    patch = (shop.root / "build/upstream.diff").read_text()
    section = patch.split("+++ b/python/sglang/m.py\n")[1].split("diff --git")[0]
    old, new, reached = UPSTREAM["m.py"].splitlines(), [], 0
    hunks = re.split(r"^@@ -(\d+),(\d+) \+(\d+),(\d+) @@\n", section, flags=re.M)[1:]
    for start, length, new_start, new_length, body in zip(*[iter(hunks)] * 5):
        new += old[reached : int(start) - 1]
        reached = int(start) - 1 + int(length)
        assert int(new_start) == len(new) + 1
        lines = body.splitlines()
        kept = [line[1:] for line in lines if line[0] in " -"]
        assert kept == old[int(start) - 1 : reached]
        added = [line[1:] for line in lines if line[0] in " +"]
        assert len(added) == int(new_length)
        new += added
    shop.build()
    assert [*new, *old[reached:]] == shop.built("m.py").splitlines()
    assert len(hunks) == 5 * 3


def test_git_takes_the_diff_back(shop):
    """Red when a removed line is not the line that was there."""
    shop.run("diff")
    checkout = applied(shop)
    subprocess.run(
        ["git", "apply", "-R", "--whitespace=nowarn", "../upstream.diff"],
        cwd=checkout.parents[1],
        check=True,
    )
    assert (checkout / "m.py").read_text() == UPSTREAM["m.py"]
    assert (checkout / "end.py").read_text() == "x = 1"


def test_replaced_lines_are_reported_with_their_reason(shop):
    """Red when a line disappears from upstream without a word."""
    code, output = shop.run("diff")
    summary = output.split(": ", 1)[1].splitlines()
    assert summary == [
        "20 lines added, 3 replaced",
        "  python/sglang/call.py:3: b",
        "    [edit-1] keyword: A reason.",
        "  python/sglang/call.py:5: g(a, b)",
        "    [edit-2] replace_argument: G wants z.",
        "  python/sglang/end.py:1: x = 1",
        "    [edit-1] after: A reason.",
    ]
    patch = (shop.root / "build/upstream.diff").read_text().splitlines()
    body = [line for line in patch if not line.startswith(("+++", "---"))]
    assert sum(line.startswith("-") for line in body) == 3
    assert sum(line.startswith("+") for line in body) == 20


def test_pure_insertions_remove_nothing(shop):
    """Red when lines that look alike are shown as replaced."""
    shop.clear_edits()
    twice = "def f():\n    return 1\n\n\n"
    shop.upstream({"m.py": twice.replace("f(", "a(") + twice.replace("f(", "b(")})
    shop.edit("m.py", anchor={"defines": "b"}, op="before", insert=twice)
    code, output = shop.run("diff")
    assert code == 0, output
    assert "6 lines added, 0 replaced" in output  # 2 of them of new/n.py
    assert "return 1" in (applied(shop) / "m.py").read_text()


def test_edits_for_the_cpu_engine_stay_out(shop):
    """Red when upstream would be offered what only the CPU engine needs."""
    shop.edit(
        "engine.py", anchor={"assigns": "x"}, op="after", insert="y = 2", engine="cpu"
    )
    shop.edit(
        "m.py",
        anchor={"assigns": "line_16"},
        op="before",
        insert="engine_only = 1",
        engine="cpu",
    )
    shop.run("diff")
    patch = (shop.root / "build/upstream.diff").read_text()
    assert "engine" not in patch and "line_16" in patch
    shop.build()
    assert shop.built("engine.py") == "x = 1\ny = 2\n"
    assert "engine_only" in shop.built("m.py")


def test_apply_can_leave_the_cpu_engine_out(shop):
    """Red when a checkout for upstream gets the engine's edits."""
    shop.edit(
        "engine.py", anchor={"assigns": "x"}, op="after", insert="y = 2", engine="cpu"
    )
    shop.run("diff")
    shop.run("lock")
    expected = files(applied(shop))
    checkout = shop.root / "build/second"
    shutil.copytree(next((shop.root / "build/pristine").glob("*/sglang")), checkout)
    code, output = shop.run("apply", "--no-engine", "--tree", checkout)
    assert code == 0, output
    assert files(checkout) == expected
