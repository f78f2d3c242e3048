"""Every file of the pull request, by its path in a checkout of SGLang."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fork.plan import Plan, make_plan
from fork.pristine import PACKAGE, package_in
from fork.project import ForkError, Project
from fork.repeats import our_files

PYTHON = f"python/{PACKAGE}"
# Copied as they are, at the same path. What stays here: results of one machine, and what
# speaks of this repository's commands, scripts and pages.
COPIED = ("test/registered/", "benchmark/")
STAYS = ("results-", "bench_server.py", "roofline.py")


@dataclass(frozen=True)
class Tree:
    """A checkout, or a tree from the wheel, in which the package lies one folder up."""

    root: Path
    package: Path

    @classmethod
    def of(cls, folder: Path) -> Tree:
        """Raises ForkError where there is no sglang package."""
        package = package_in(folder).resolve()
        inside = package.parent
        return cls(inside.parent if inside.name == "python" else inside, package)

    def place(self, path: str) -> Path:
        """Where a path of a checkout lies in this tree."""
        if path.startswith(f"{PYTHON}/"):
            return self.package / path.removeprefix(f"{PYTHON}/")
        return self.root / path


@dataclass(frozen=True)
class Contents:
    """`files` by path in a checkout, which of them upstream lacks, and the plan."""

    files: dict[str, bytes]
    new: set[str]
    plan: Plan


def collect(project: Project, tree: Tree, reference: Path | None) -> Contents:
    """Edited and new files of the package, tests and benchmark, as they will be.

    Raises ForkError when an anchor, the lock or a path does not fit this tree.
    """
    plan = make_plan(project, tree.package, engine=False, reference=reference)
    plan.problems += [
        f"{place}: not in the lock; review it, then run: python scripts/fork lock"
        for place in plan.unlocked
    ]
    plan.require()
    changed = {f"{PYTHON}/{name}": c.after for name, c in plan.changes.items()}
    new = {f"{PYTHON}/{name}": data for name, data in plan.new_files.items()}
    new |= copied(project)
    if taken := [path for path in new if tree.place(path).exists()]:
        raise ForkError.of(
            [f"{path} exists in {tree.root}; rename ours" for path in sorted(taken)]
        )
    return Contents(changed | new, set(new), plan)


def copied(project: Project) -> dict[str, bytes]:
    """Files outside the package that go upstream at the path they have here."""
    return {
        path: text.encode()
        for path, text in our_files(project.root).items()
        if path.startswith(COPIED)
        and not path.rpartition("/")[2].startswith(STAYS)
        and "/records/" not in path
    }
