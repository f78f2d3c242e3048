"""What goes upstream makes sense there: its CI reads it, and nothing points back here."""

import ast
import functools
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from fork.plan import new_files
from fork.project import Project
from prepare_pr.contents import copied
from prepare_pr.docs import FLAG, other_flags, page_text
from prepare_pr.stack import make_stack

from sglang.test.ci.ci_register import ut_parse_one_file

PROJECT = Project()
FORK = PROJECT.build / "fork"
COPIED = {path: data.decode() for path, data in copied(PROJECT).items()}
NEW = {f"python/sglang/{n}": d.decode() for n, d in new_files(PROJECT).items()}
GOES = COPIED | NEW
TESTS = [
    path for path in COPIED if re.fullmatch(r"test/registered/.*/test_\w+.py", path)
]
PYTHON = [path for path in GOES if path.endswith(".py")]
# Commands, folders and files of this repository that SGLang's does not have.
OURS = re.compile(
    r"\bmake (?!sure)[a-z-]+`|^make |scripts/|build/fork|python/edits|cpu_engine"
    r"|planted_faults|test/(?:e2e|fork|tools|property)|results-cpu|docs/\w+\.md",
    re.M,
)


def tree_of(path):
    return ast.parse(GOES[path])


def sibling_modules(path):
    """Modules that stand beside a file, which its folder on the path makes importable."""
    folder = path.rpartition("/")[0]
    return {Path(other).stem for other in PYTHON if other.rpartition("/")[0] == folder}


@functools.cache
def installed(module):
    """Whether a module is Python's own, a package's, or SGLang's."""
    spec = importlib.util.find_spec(module)
    return module in {*sys.stdlib_module_names, "sglang"} or (
        bool(spec and spec.origin) and "site-packages" in spec.origin
    )


@pytest.mark.parametrize("path", TESTS)
def test_upstream_ci_reads_its_registration(path):
    """Red when a test is not registered, or with arguments that the CI cannot read."""
    registries, has_main_entry = ut_parse_one_file(str(PROJECT.root / path))
    assert registries and has_main_entry
    for registry in registries:
        assert 0 < registry.est_time <= 300 and registry.effective_suite
        assert registry.disabled is None


@pytest.mark.parametrize("path", TESTS)
def test_it_runs_as_a_file(path):
    """Red when `python test_x.py`, which is how upstream's CI runs it, tests nothing."""
    last = tree_of(path).body[-1]
    assert isinstance(last, ast.If)
    assert ast.unparse(last.test) == "__name__ == '__main__'"
    assert "unittest.main()" in ast.unparse(last)


@pytest.mark.parametrize("path", TESTS)
def test_its_cases_are_custom_test_cases(path):
    """Red when a case lacks upstream's retry and timeouts, or needs pytest."""
    bases = {
        ast.unparse(base)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    }
    assert not {base for base in bases if base.endswith("TestCase")} - {
        "CustomTestCase"
    }
    assert "pytest" not in GOES[path]


@pytest.mark.parametrize("path", PYTHON)
def test_it_imports_what_is_there(path):
    """Red when a file imports a module that only this repository has."""
    siblings = sibling_modules(path)
    for node in ast.walk(tree_of(path)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        for name in names:
            top = name.split(".")[0]
            assert top in siblings or installed(top), name
            if top == "sglang":
                place = FORK / name.replace(".", "/")
                assert place.with_suffix(".py").exists() or place.is_dir(), name


@pytest.mark.parametrize("path", GOES)
def test_it_names_nothing_of_this_repository(path):
    """Red when a comment or a page sends SGLang's reader to a file that is not there."""
    assert [match[0] for match in OURS.finditer(GOES[path])] == []


def test_the_page_names_nothing_of_this_repository():
    """Red when SGLang's documentation would speak of ours."""
    text = page_text(PROJECT)
    assert [match[0] for match in OURS.finditer(text)] == []
    assert text.count("| --- |") >= 3 and "@table" not in text
    assert re.findall(r"\]\((?!https?:|/)[^)]*", text) == []


def test_every_file_has_a_commit_that_stands():
    """Red when a new file has no commit, or one that imports what comes later."""
    stack = make_stack({path: text.encode() for path, text in GOES.items()}, set(GOES))
    assert sum(len(commit.files) for commit in stack) == len(GOES)
    assert [commit.name for commit in stack][0] == "kernels"


def test_every_flag_is_documented_where_flags_are():
    """Red when an argument is added and the page, from which upstream's table of
    arguments gets its rows, does not have it, or has none of its choices."""
    edits = PROJECT.root / "python/edits/srt/arg_groups/fields/spec.toml"
    fields = re.findall(r"^(speculative_\w+): A\[", edits.read_text(), re.M)
    flags = {"--" + field.replace("_", "-") for field in fields}
    rows = other_flags(PROJECT)
    assert {re.sub(r"</?code>", "", name) for name, *_ in rows} | {FLAG} == flags
    assert all(len(row) == 4 and all(row) for row in rows)
