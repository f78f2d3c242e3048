"""Everything the fork changes in one package, worked out before a byte is written."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from fork import splice
from fork.edits import Edit, load_edits
from fork.locate import locate
from fork.lock import Lock, entry, moved, read_lock
from fork.project import ForkError, Project
from fork.source import Source
from fork.splice import Splice
from fork.syntax import Site


@dataclass(frozen=True)
class Change:
    """One upstream file before and after, with the splices between the two."""

    before: bytes
    after: bytes
    splices: list[Splice]


@dataclass
class Plan:
    """Changed and new files by package path, the lock they give, all problems.

    `moved` are those problems that a person may settle by rewriting the lock,
    `unlocked` the edits that the lock does not know yet. `refused` has the reasons of
    each edit that cannot be applied, by the edit's place.
    """

    changes: dict[str, Change] = field(default_factory=dict)
    new_files: dict[str, bytes] = field(default_factory=dict)
    lock: Lock = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    unlocked: list[str] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)

    def refuse(self, edits: list[Edit], reasons: list[str]) -> None:
        """Note reasons that stop these edits."""
        self.problems += reasons
        for edit in edits:
            self.refused.setdefault(edit.place, []).extend(reasons)

    def require(self) -> Plan:
        """This plan, or a ForkError with every problem."""
        if self.problems:
            raise ForkError.of(self.problems)
        return self


def make_plan(
    project: Project,
    package: Path,
    *,
    engine: bool = True,
    reference: Path | None = None,
) -> Plan:
    """Apply all edits to the files of `package` in memory.

    Without `engine`, edits that only the CPU engine needs are left out. `reference`
    is a pristine package that shows, in messages, how a changed place was.
    """
    plan = Plan()
    edits = [edit for edit in load_edits(project) if engine or not edit.engine]
    locked = read_lock(project.lock)
    for file in dict.fromkeys(edit.file for edit in edits):
        group = [edit for edit in edits if edit.file == file]
        old = reference / file if reference else None
        plan_file(plan, package / file, group, locked.get(file, {}), old)
    if engine:
        stale = stale_entries(locked, edits)
        plan.moved += stale
        plan.problems += stale
    plan.new_files = new_files(project)
    plan.problems += covered(project, plan.new_files, package)
    return plan


def plan_file(
    plan: Plan,
    path: Path,
    edits: list[Edit],
    locked: dict[str, dict[str, str]],
    reference: Path | None,
) -> None:
    file = edits[0].file
    if not path.is_file():
        plan.refuse(edits, [f"{edits[0].source}: sglang/{file} does not exist"])
        return
    before = path.read_bytes()
    old_sites = reference_sites(reference, edits)
    found: list[Splice] = []
    try:
        source, tree = Source(before), ast.parse(before)
    except (ForkError, SyntaxError) as error:
        plan.refuse(edits, [f"{edits[0].source}: sglang/{file}: {error}"])
        return
    for edit in edits:
        try:
            site = locate(tree, edit)
            plan.lock.setdefault(file, {})[edit.name] = entry(site, edit)
            if edit.name not in locked:
                plan.unlocked.append(edit.place)
            elif entry(site, edit) != locked[edit.name]:
                old = old_sites.get(edit.name)
                changes = moved(edit, site, locked[edit.name], old)
                plan.moved += changes
                plan.refuse([edit], changes)
            found += splice.splices(source, site, edit)
        except ForkError as error:
            plan.refuse([edit], [str(error)])
    if not any(edit.place in plan.refused for edit in edits):
        try:
            plan.changes[file] = changed(before, found, edits)
        except ForkError as error:
            plan.refuse(edits, [str(error)])


def changed(before: bytes, found: list[Splice], edits: list[Edit]) -> Change:
    splices = splice.ordered(found)
    after = splice.apply(before, splices)
    try:
        ast.parse(after)
    except SyntaxError as error:
        names = ", ".join(edit.name for edit in edits)
        raise ForkError(
            f"{edits[0].source}: sglang/{edits[0].file} no longer parses after the "
            f"edits ({names}): line {error.lineno}: {error.msg}: "
            f"{(error.text or '').strip()}"
        ) from None
    return Change(before, after, splices)


def reference_sites(path: Path | None, edits: list[Edit]) -> dict[str, Site]:
    if path is None or not path.is_file():
        return {}
    tree = ast.parse(path.read_bytes())
    sites = {}
    for edit in edits:
        try:
            sites[edit.name] = locate(tree, edit)
        except ForkError:
            pass
    return sites


def stale_entries(locked: Lock, edits: list[Edit]) -> list[str]:
    known = {(edit.file, edit.name) for edit in edits}
    return [
        f"python/edits/lock.json: {file} [{name}] has no edit any more; "
        "run: python scripts/fork lock"
        for file, names in locked.items()
        for name in names
        if (file, name) not in known
    ]


def new_files(project: Project) -> dict[str, bytes]:
    """The files of `python/sglang`, by package path."""
    found = {}
    for path in sorted(project.new_files.rglob("*")):
        name = path.relative_to(project.new_files)
        hidden = any(p.startswith(".") or p == "__pycache__" for p in name.parts)
        if path.is_file() and not hidden and path.suffix != ".pyc":
            found[name.as_posix()] = path.read_bytes()
    return found


def covered(project: Project, names: dict[str, bytes], package: Path) -> list[str]:
    """New files that would replace or hide one of upstream."""
    problems = []
    for name in names:
        path = package / name
        if path.exists():
            hidden = name
        elif path.suffix == ".py" and (path.with_suffix("") / "__init__.py").exists():
            hidden = f"{name.removesuffix('.py')}/"
        else:
            parents = [PurePosixPath(name).parents[i] for i in range(name.count("/"))]
            files = [p.with_suffix(".py") for p in parents]
            files = [package / file for file in files if (package / file).is_file()]
            if not files:
                continue
            hidden = files[0].relative_to(package).as_posix()
        problems.append(
            f"{project.name(project.new_files / name)} covers upstream's "
            f"sglang/{hidden}; move it to a path of its own"
        )
    return problems
