"""The pinned SGLang itself: what holds on small fixtures holds on the real files.

Needs the extracted wheel that `python scripts/fork build` leaves in `build/pristine`.
"""

import ast
import subprocess
from collections.abc import Iterator

import pytest
from fork import repeats
from fork.diff import make_diff
from fork.edits import load_edits
from fork.pins import Pins
from fork.plan import make_plan
from fork.pristine import cached_package
from fork.project import Project
from prepare_pr.checks import RUFF_FORMAT, tool

PROJECT = Project()
PACKAGE = cached_package(PROJECT, Pins.load(PROJECT))
pytestmark = pytest.mark.skipif(
    PACKAGE is None, reason="no pristine wheel: run python scripts/fork build"
)


@pytest.fixture
def edited_files(tmp_path):
    """A checkout that holds the files that edits change, and nothing else."""
    for name in {"__init__.py"} | {edit.file for edit in load_edits(PROJECT)}:
        path = tmp_path / "python/sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((PACKAGE / name).read_bytes())
    return tmp_path


def test_git_takes_the_diff_on_the_pinned_files(edited_files):
    """Red when the patch for upstream does not apply, or gives other bytes."""
    plan = make_plan(PROJECT, PACKAGE, engine=False).require()
    patch = edited_files / "upstream.diff"
    patch.write_bytes(make_diff(plan).text)
    subprocess.run(["git", "init", "-q", edited_files], check=True)
    for arguments in (["--check"], []):
        command = ["git", "apply", "--whitespace=error", *arguments, patch]
        subprocess.run(command, cwd=edited_files, check=True)
    for name, change in plan.changes.items():
        assert (edited_files / "python/sglang" / name).read_bytes() == change.after
    for name, data in plan.new_files.items():
        assert (edited_files / "python/sglang" / name).read_bytes() == data


def test_edited_files_keep_their_layout(edited_files):
    """Red when an insert is laid out in a way that upstream's formatter would change."""
    plan = make_plan(PROJECT, PACKAGE, engine=False).require()
    for name, change in plan.changes.items():
        (edited_files / "python/sglang" / name).write_bytes(change.after)
    check = tool(edited_files, "ruff", [*RUFF_FORMAT, "python"])
    assert check.passed, check.note


def test_one_changed_neighbour_stops_every_edit_beside_it(edited_files):
    """Red when the statement before an anchor can change unseen in any edited file."""
    package = edited_files / "python/sglang"
    changed = set()
    for file, name, line in neighbours():
        path = package / file
        original = path.read_bytes()
        lines = original.split(b"\n")
        indent = lines[line - 1][: -len(lines[line - 1].lstrip())]
        lines[line - 1 : line - 1] = [indent + b"moved = here"]
        path.write_bytes(b"\n".join(lines))
        problems = make_plan(PROJECT, package, reference=PACKAGE).problems
        assert any(f"[{name}] sglang/{file}" in problem for problem in problems)
        path.write_bytes(original)
        changed.add(file)
    assert changed == {edit.file for edit in load_edits(PROJECT)}


def neighbours() -> Iterator[tuple[str, str, int]]:
    """Of each edited file the first locked edit, and the line its anchor starts on."""
    from fork.locate import locate

    seen = set()
    for edit in load_edits(PROJECT):
        site = locate(ast.parse((PACKAGE / edit.file).read_bytes()), edit)
        decorated = getattr(site.head, "decorator_list", [])
        if edit.file not in seen and not decorated:
            seen.add(edit.file)
            yield edit.file, edit.name, site.head.lineno


def test_a_planted_copy_of_the_pinned_package_is_caught():
    """Red when a function or a run of SGLang's own lines gets into a file of ours."""
    path = "srt/speculative/spec_utils.py"
    text = (PACKAGE / path).read_text()
    functions = [n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]
    longest = max(functions, key=lambda node: node.end_lineno - node.lineno)
    lines = text.splitlines()[longest.body[0].lineno : longest.end_lineno]
    other_layout = ast.unparse(longest).replace(longest.name, "renamed")
    files = {"lines.md": "\n".join(lines), "layout.py": other_layout}
    found = repeats.find_repeats(files, PACKAGE)
    assert {repeat.path for repeat in found} == set(files)
    assert all(f"sglang/{path}" in repeat.upstream for repeat in found)


def test_the_repository_passes(capsys):
    """Red when an anchor, the lock, a new file or a repeat is not in order."""
    from fork.cli import main

    assert main(["check"]) == 0, capsys.readouterr().err


def test_no_file_of_the_pinned_package_can_hide_from_the_edits():
    """Red when a file that we edit holds what line numbers cannot be trusted with."""
    for edit in load_edits(PROJECT):
        data = (PACKAGE / edit.file).read_bytes()
        assert not {b"\r", b"\f"} & {bytes([byte]) for byte in data}
        assert data.endswith(b"\n")


def test_the_tool_is_used_as_a_folder(tmp_path):
    """Red when `python scripts/fork` cannot import itself, from any folder."""
    import sys

    script = PROJECT.root / "scripts" / "fork"
    command = [sys.executable, script, "diff", "--out", tmp_path / "upstream.diff"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "lines added" in done.stdout
