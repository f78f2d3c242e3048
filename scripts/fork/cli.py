"""The commands of `python scripts/fork`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fork.lock import differences, read_lock, write_lock
from fork.pins import Pins, find_wheel, this_machine
from fork.plan import Plan, make_plan
from fork.pristine import cached_package, package_in, pristine_package
from fork.project import REPOSITORY, ForkError, Project
from fork.tree import apply_in_place, build_tree

MACHINES = ("x86_64", "aarch64")
REGISTERED = "test/registered/"  # goes upstream at the same path


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        print(options.run(Project(options.root.resolve()), options))
    except ForkError as error:
        print(f"fork {options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="scripts/fork", description=__doc__)
    top.add_argument(
        "--root", type=Path, default=REPOSITORY, help="repository (default: this one)"
    )
    commands = top.add_subparsers(dest="command", required=True)

    def command(name: str, run, text: str, *, out: str = "", tree: str = "") -> None:
        one = commands.add_parser(name, help=text, description=text)
        one.set_defaults(run=run)
        if out:
            one.add_argument("--out", type=Path, help=f"default: {out}")
        if tree in ("may", "must"):
            text = "checkout with python/sglang, folder with sglang, or the package"
            one.add_argument("--tree", type=Path, required=tree == "must", help=text)
        if tree in ("", "may"):
            one.add_argument("--wheel", type=Path, help="default: from build/wheels")
        if name == "apply":
            one.add_argument(
                "--no-engine", action="store_true", help="leave CPU-only edits out"
            )

    command("fetch", fetch, "find or download the pinned wheel, print its path")
    command("build", build, "build the fork tree", out="build/fork")
    command("check", check, "verify anchors, lock and new files", tree="may")
    command("apply", apply, "change a checkout in place", tree="must")
    command("diff", diff, "write the upstream diff", out="build/upstream.diff")
    command("lock", lock, "accept how anchors and neighbours look now")
    text = "build the fork's wheels, one a supported Python"
    command("wheel", wheel, text, out="dist")
    text = "for hosts of this kind; repeatable (default: this one's)"
    commands.choices["wheel"].add_argument(
        "--machine", action="append", choices=MACHINES, dest="machines", help=text
    )
    text = "on which releases the edits land"
    command("compat", compat, text, out="build/compat.json", tree="no")
    text = "a release to look at; repeatable (default: those around the pin)"
    add = commands.choices["compat"].add_argument
    add("--version", action="append", default=[], dest="versions", help=text)
    text = "serve each release that takes every edit, with the packages of this environment"
    add("--engine-tests", action="store_true", help=text)
    add("--record", action="store_true", help="write docs/releases.md too")
    command("bump", bump, "move the pin to another release", tree="no")
    add = commands.choices["bump"].add_argument
    add("--version", required=True)
    add("--accept", action="store_true", help="do not ask; for one who has read it")
    return top


def fetch(project: Project, options: argparse.Namespace) -> str:
    return str(find_wheel(project, Pins.load(project), options.wheel))


def build(project: Project, options: argparse.Namespace) -> str:
    out = options.out or project.build / "fork"
    return build_tree(project, out.resolve(), options.wheel)


def check(project: Project, options: argparse.Namespace) -> str:
    from fork import repeats

    pins = Pins.load(project)
    if options.tree:
        package = package_in(options.tree)
        reference = cached_package(project, pins)
    else:
        _, package = pristine_package(project, pins, options.wheel)
        reference = None
    plan = make_plan(project, package, reference=reference)
    locked(plan)
    plan.problems += repeats.check(project, reference or package)
    plan.require()
    upstream = make_plan(project, package, engine=False).require()
    edits = sum(len(names) for names in plan.lock.values())
    return (
        f"{package}: {edits} edits in {len(plan.changes)} files match, "
        f"{len(plan.new_files)} new files cover nothing, no upstream code is repeated"
        f" ({len(upstream.changes)} files change upstream)"
    )


def locked(plan: Plan) -> Plan:
    plan.problems += [
        f"{place}: not in the lock; review it, then run: python scripts/fork lock"
        for place in plan.unlocked
    ]
    return plan


def apply(project: Project, options: argparse.Namespace) -> str:
    reference = cached_package(project, Pins.load(project))
    engine = not options.no_engine
    return apply_in_place(project, options.tree, engine=engine, reference=reference)


def diff(project: Project, options: argparse.Namespace) -> str:
    from fork.diff import make_diff, summary
    from fork.repeats import our_files

    out = options.out or project.build / "upstream.diff"
    _, package = pristine_package(project, Pins.load(project), options.wheel)
    plan = make_plan(project, package, engine=False).require()
    tests = {
        path: text.encode()
        for path, text in our_files(project.root).items()
        if path.startswith(REGISTERED)
    }
    result = make_diff(plan, tests)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(result.text)
    return f"{out}: {summary(result)}"


def lock(project: Project, options: argparse.Namespace) -> str:
    _, package = pristine_package(project, Pins.load(project), options.wheel)
    plan = make_plan(project, package)
    lines = differences(read_lock(project.lock), plan.lock)
    wrong = [problem for problem in plan.problems if problem not in plan.moved]
    if wrong:
        raise ForkError.of(wrong)
    write_lock(project.lock, plan.lock)
    return "\n".join([*lines, *plan.moved] or ["the lock is unchanged"])


def wheel(project: Project, options: argparse.Namespace) -> str:
    from fork.wheel import build_wheel

    out = options.out or project.root / "dist"
    pins = Pins.load(project)
    if options.wheel:
        return str(build_wheel(project, out, options.wheel))
    machines = options.machines or [this_machine()]
    names = [name for machine in machines for name in pins.wheel_names(machine)]
    wheels = [find_wheel(project, pins, name=x) for x in names or [pins.wheel_name()]]
    return "\n".join(str(build_wheel(project, out, one)) for one in wheels)


def compat(project: Project, options: argparse.Namespace) -> str:
    from fork.compat import compat as look

    out = options.out or project.build / "compat.json"
    return look(project, out, options.versions, options.engine_tests, options.record)


def bump(project: Project, options: argparse.Namespace) -> str:
    from fork.bump import bump as move

    def accept(review: str) -> bool:
        print(review, flush=True)
        return options.accept or input("Accept these places? [y/N] ").strip() == "y"

    return move(project, options.version, accept)
