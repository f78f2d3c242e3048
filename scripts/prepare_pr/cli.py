"""The command `python scripts/prepare_pr --tree TREE`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from fork.pins import Pins
from fork.pristine import PACKAGE, cached_package, pristine_package
from fork.project import REPOSITORY, ForkError, Project
from prepare_pr import checkout
from prepare_pr.checks import run_checks
from prepare_pr.contents import Contents, Tree, collect
from prepare_pr.description import Facts, describe
from prepare_pr.docs import documentation
from prepare_pr.records import read_results
from prepare_pr.stack import make_stack

TEST_SECONDS = 600


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return prepare(Project(options.root.resolve()), options)
    except ForkError as error:
        print(f"prepare_pr: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="scripts/prepare_pr", description=__doc__)
    add = top.add_argument
    add("--root", type=Path, default=REPOSITORY, help=argparse.SUPPRESS)
    text = (
        "SGLang checkout, or a tree with the package of the wheel; a folder that does "
        "not exist is made from the pinned wheel, laid out as a checkout"
    )
    add("--tree", type=Path, required=True, help=text)
    text = "where the description goes (default: build/pr/description.md)"
    add("--description", type=Path, help=text)
    text = "a further recorded result (JSON, or a page with tables); repeatable"
    add("--record", type=Path, action="append", default=[], help=text)
    text = "run this registered test on the prepared tree; repeatable"
    add("--test", action="append", default=[], metavar="PATH", help=text)
    return top


def prepare(project: Project, options: argparse.Namespace) -> int:
    """Commit the stack, write the description; 1 when a check fails."""
    pins = Pins.load(project)
    results = read_results(project, options.record)  # first: it changes nothing
    if not options.tree.exists():
        assemble(project, pins, options.tree)
    tree = Tree.of(options.tree)
    contents = collect(project, tree, cached_package(project, pins))
    pages, new, missing = documentation(project, tree)
    contents = Contents(contents.files | pages, contents.new | new, contents.plan)
    stack = make_stack(contents.files, contents.new)
    checkout.ready(tree.root, f"{pins.name} {pins.version}, as in its wheel")
    ids = checkout.commit_stack(tree, stack)
    checks = run_checks(
        tree.root, ids[0], *paths_in(tree, contents.files, contents.new)
    )
    facts = Facts(
        base=ids[0][:12],
        stack=stack,
        sizes=[
            size(tree, ids[0], ids[-1]),
            *(size(tree, a, b) for a, b in zip(ids, ids[1:])),
        ],
        kinds={name: size(tree, ids[0], ids[-1], *only) for name, only in kinds(tree)},
        contents=contents,
        checks=checks,
        results=results,
        missing=missing,
        tests=[run_test(tree, path) for path in options.test],
    )
    out = options.description or project.build / "pr" / "description.md"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(describe(facts), "utf-8")
    print(report(tree, facts, out))
    failed = [check for check in checks if check.passed is False]
    return int(bool(failed) or any("FAILED" in line for line in facts.tests))


def assemble(project: Project, pins: Pins, folder: Path) -> None:
    """A tree laid out as a checkout, with the files of the pinned wheel."""
    wheel, _ = pristine_package(project, pins)
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.startswith(f"{PACKAGE}/")]
        archive.extractall(folder / "python", names)


def paths_in(
    tree: Tree, files: dict[str, bytes], new: set[str]
) -> tuple[list[str], list[str]]:
    """New and changed paths, relative to the tree's root."""

    def inside(path: str) -> str:
        return tree.place(path).relative_to(tree.root).as_posix()

    return sorted(map(inside, new)), sorted(map(inside, files.keys() - new))


def kinds(tree: Tree) -> list[tuple[str, list[str]]]:
    """What a reviewer reads apart, each with git's patterns of its paths."""
    package = tree.package.relative_to(tree.root).as_posix()
    return [
        ("the package", [package, f":!{package}/test"]),
        ("tests and their kits", ["test", f"{package}/test"]),
        ("documentation and benchmark", ["docs_new", "benchmark"]),
    ]


def size(tree: Tree, old: str, new: str, *only: str) -> str:
    """`N files, +A -R lines` between two commits, of the paths that match `only`."""
    command = ["diff", "--numstat", old, new, "--", *only]
    lines = checkout.git(tree.root, *command).splitlines()
    counts = [line.split("\t")[:2] for line in lines]
    added = sum(int(a) for a, _ in counts if a != "-")
    removed = sum(int(r) for _, r in counts if r != "-")
    return f"{len(lines)} files, +{added} -{removed} lines"


def run_test(tree: Tree, path: str) -> str:
    """Run one test file with nothing but the tree on the path; a line about it."""
    package_root = str(tree.package.parent)
    env = {**os.environ, "PYTHONPATH": package_root, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, path]
    try:
        done = subprocess.run(
            command,
            cwd=tree.root,
            env=env,
            capture_output=True,
            text=True,
            timeout=TEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"- `{path}`: FAILED (more than {TEST_SECONDS} s)"
    lines = done.stderr.strip().splitlines()
    ran = next((line for line in reversed(lines) if line.startswith("Ran ")), "")
    state = "passed" if done.returncode == 0 and ran else "FAILED"
    last = lines[-1] if lines else f"exit status {done.returncode}"
    return f"- `{path}`: {state} ({ran or 'no test ran'}; {last})"


def report(tree: Tree, facts: Facts, out: Path) -> str:
    lines = [f"{tree.root}: branch {checkout.BRANCH}, {facts.sizes[0]}"]
    for commit, text in zip(facts.stack, facts.sizes[1:]):
        lines.append(f"  {commit.title}: {text}")
    lines += [f"  {check}" for check in facts.checks]
    lines += [f"  {text}" for text in (*facts.tests, *facts.missing)]
    return "\n".join([*lines, f"description: {out}"])
