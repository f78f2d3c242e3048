"""The check of the prepared tree: what counts as loaded, as stray, as passed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.pr_check import served
from scripts.pr_check.__main__ import all_faults, main, roots_of
from scripts.pr_check.stack import BRANCH, git, run_stack
from scripts.pr_check.suites import file_faults, registered_tests, run_file, verdict
from scripts.serving import Completion
from scripts.serving.bare import VERBOSE, Roots, feature_files, loaded_files

AUTHOR = ("-c", "user.name=test", "-c", "user.email=test@localhost")
FEATURE = "sglang/srt/layers/vocab_parallel_draft.py"
TEST = """\
import unittest
import sglang
class Test(unittest.TestCase):
    def test_one(self):
        {}
unittest.main()
"""


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """A tree with a package, a repository around it, an environment and stand-ins."""
    for name in ("tree/python/sglang", "env/site-packages/sglang", "engine", "ours"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tree/python/sglang/__init__.py").write_text("")
    (tmp_path / "ours/helper.py").write_text("")
    return Roots(
        tree=tmp_path / "tree/python",
        stand_ins=tmp_path / "engine",
        environment=(tmp_path / "env", Path(sys.prefix), Path(sys.base_prefix)),
        repository=tmp_path,
    )


def test_a_process_says_which_files_it_loaded(roots: Roots) -> None:
    """Red when a module is not seen, compiled now or before, or of an extension."""
    ours = roots.repository / "ours"
    path = os.pathsep.join(map(str, (roots.tree, ours)))
    env = os.environ | VERBOSE | {"PYTHONPATH": path}
    code = "import sglang, helper, _ssl"
    for _ in range(2):
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0
        files = loaded_files(done.stderr)
        assert {roots.tree / "sglang/__init__.py", ours / "helper.py"} <= files
        assert [file for file in files if file.name.startswith("_ssl.")]
        assert roots.strays(files) == [str(ours / "helper.py")]


def test_another_sglang_is_a_stray(roots: Roots) -> None:
    """Red when a server that falls back on the installed package passes."""
    installed = roots.repository / "env/site-packages/sglang/srt/x.py"
    built = roots.repository / "build/fork/sglang/srt/x.py"
    fine = [
        roots.tree / "sglang/srt/x.py",
        roots.stand_ins / "sgl_kernel/__init__.py",
        roots.repository / "env/site-packages/torch/x.py",
        roots.repository / "env/site-packages/other/sglang/x.py",
        Path("/elsewhere/cache/x.py"),
    ]
    assert roots.strays([*fine, installed, built]) == [str(built), str(installed)]


def test_lines_of_several_processes_run_into_each_other() -> None:
    """Red when a file is lost, or two become one, because another process wrote."""
    log = (
        "# /e/__pycache__/a.cpython-311.pyc matches /e/a.py# code object from /t/b.py\n"
        "# code object from '/e/__pycache__/c.cpython-311.pyc'# code object from /t/d.py\n"
        "[log] x# extension module 'e.f' loaded from '/e/f.so'# /e/g.pyc matches /e/g.py\n"
    )
    expected = ("/e/a.py", "/t/b.py", "/t/d.py", "/e/f.so", "/e/g.py")
    assert loaded_files(log) == {Path(path) for path in expected}


def test_the_feature_is_known_by_its_modules(roots: Roots) -> None:
    """Red when a module of upstream's counts as ours, or a helper of tests."""
    upstream = roots.tree / "sglang/srt/layers/vocab_parallel_embedding.py"
    kit = roots.tree / "sglang/test/kits/gloo_ranks_kit.py"
    files = [roots.tree / FEATURE, upstream, kit, roots.repository / FEATURE]
    assert feature_files(files, roots.tree) == [FEATURE]


@pytest.mark.parametrize(
    ("body", "said", "fault"),
    [
        ("pass", "1 tests, OK", None),
        ("self.fail('so')", "1 tests, FAILED (failures=1)", "FAIL: test_one"),
        ("import helper", "1 tests, OK", "loaded "),
        ("import os; os._exit(0)", "no test ran", "exit code 0, no test ran"),
    ],
)
def test_a_registered_file_passes_or_says_why(roots: Roots, body, said, fault) -> None:
    """Red when a failed file, one that stops early, or one that needs this repository
    counts as passed."""
    root = roots.tree.parent
    helper = f"import sys; sys.path.append({str(roots.repository / 'ours')!r}); "
    text = helper + body if body == "import helper" else body
    path = root / "test/registered/test_a.py"
    path.parent.mkdir(parents=True)
    path.write_text(TEST.format(text))
    assert registered_tests(root, ["_a"]) == ["test/registered/test_a.py"]
    assert registered_tests(root, ["_b"]) == []
    row = run_file(roots, root, "test/registered/test_a.py", root / "log")
    assert row["said"] == said
    assert bool(row["faults"]) == bool(fault), row
    assert fault is None or row["faults"][0].startswith(fault)


def test_a_file_without_the_tree_is_a_fault(roots: Roots) -> None:
    """Red when tests that import no SGLang of the tree count as run on it."""
    text = "Ran 3 tests in 0.1s\n\nOK (skipped=3)\n"
    assert verdict(text) == "3 tests, OK (skipped=3)"
    wrong = file_faults(roots, text, set(), 0)
    assert wrong == ["sglang was not loaded from the tree"]
    assert "more than" in file_faults(roots, text, set(), None)[0]


def arm(roots: Roots, ids: list[int], *names: str, path: str | None) -> served.Arm:
    files = {roots.tree / name for name in ("sglang/launch_server.py", *names)}
    answers = [Completion(ids, 2.0, 1, 3, 0.1, correct_histogram=[1])]
    return served.Arm(answers, {"path": path} if path else None, "1.0", files)


def test_two_arms_agree_or_the_difference_is_named(roots: Roots) -> None:
    """Red when other tokens, a dense server, or a module too early passes."""
    dense = arm(roots, [1, 2], path=None)
    packed = arm(roots, [1, 2], FEATURE, path="packed")
    assert served.faults(roots, dense, packed) == []
    other = arm(roots, [1, 3], FEATURE, path="packed")
    assert served.faults(roots, dense, other) == ["request 0: output_ids differs"]
    fell_back = arm(roots, [1, 2], FEATURE, path="dense")
    assert "packed: the server says" in served.faults(roots, dense, fell_back)[0]
    early = arm(roots, [1, 2], FEATURE, path=None)
    assert "with the flag off" in served.faults(roots, early, packed)[0]
    stray = arm(roots, [1, 2], "../../build/fork/sglang/x.py", path=None)
    stray.files.add(roots.repository / "ours/helper.py")
    assert "dense: loaded" in served.faults(roots, stray, packed)[0]


def test_a_commit_that_cannot_be_imported_alone(roots: Roots) -> None:
    """Red when a commit passes that needs a later one, or does not restore the branch."""
    root, package = roots.tree.parent, roots.tree / "sglang"

    def commit(title: str, **files: str) -> None:
        for name, text in files.items():
            (package / f"{name}.py").write_text(text)
        git(root, "add", "--all")
        git(root, *AUTHOR, "commit", "--quiet", "-m", title)

    git(root, "init", "--quiet", "--initial-branch", "main")
    commit("base", old="", never="import not_on_this_machine\n")
    git(root, "checkout", "--quiet", "-b", BRANCH)
    commit("first", old="import sglang.helper\n", never="import not_here_either\n")
    test = root / "test/registered/test_a.py"
    test.parent.mkdir(parents=True)
    test.write_text("import sglang.later\n")
    commit("second", helper="import sglang.old\n")
    found = run_stack(roots, root, lambda text: None)
    first, second = found["faults"]
    assert first.startswith("first: sglang.old: ModuleNotFoundError")
    assert second.startswith("second: test/registered/test_a.py: ModuleNotFoundError")
    assert [row["imported"] for row in found["commits"]] == [0, 1]
    assert list(found["not_importable_at_base"]) == ["sglang.never"]
    assert git(root, "branch", "--show-current") == [BRANCH]


def test_faults_of_every_step_count(tmp_path: Path, monkeypatch, capsys) -> None:
    """Red when a fault of a step before the last one leaves the exit code at 0, or a
    later call forgets what an earlier one found on the same tree."""
    report = {"tree": {"faults": []}, "served": {"faults": ["a"]}}
    assert all_faults(report) == ["served: a"]
    with pytest.raises(ValueError, match="no tree there"):
        roots_of(tmp_path)
    package = tmp_path / "tree/python/sglang/__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    steps = {"compare": ["b"], "run_registered": [], "run_engine": []}
    for name, wrong in steps.items():
        monkeypatch.setattr(
            f"scripts.pr_check.__main__.{name}",
            lambda *_, wrong=wrong: {"faults": wrong, "tests": ["t"]},
        )
    out = ["--out", str(tmp_path)]
    assert main([*out, "--step", "registered", "--step", "served"]) == 1
    assert "pr_check: served: b" in capsys.readouterr().err
    assert main([*out, "--step", "engine", "--engine", "t"]) == 0
    assert main([*out, "--step", "engine", "--engine", "t"]) == 0
    kept = json.loads((tmp_path / "report.json").read_text())
    assert set(kept) == {"registered", "served", "engine"}
    assert len(kept["engine"]) == 1 and kept["served"]["faults"] == ["b"]
