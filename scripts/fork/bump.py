"""Move the pin to another release, once a person has read what moved."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from fork.lock import write_lock
from fork.pins import Pins, sha256_of
from fork.plan import make_plan
from fork.pristine import pristine_package, release_package, release_wheel
from fork.project import ForkError, Project
from fork.repeats import our_files

# A mention in these is history, or the pin itself.
NOT_LISTED = ("CHANGELOG.md", "scripts/fork/pins.toml", "test/")


def bump(project: Project, version: str, accept: Callable[[str], bool]) -> str:
    """Fetch a release, show what moved near each anchor, and ask to take it over.

    `accept` is given what to review. Raises ForkError, and leaves pin and lock alone,
    when an edit finds no place, or when it is declined.
    """
    pins = Pins.load(project)
    if version == pins.version:
        raise ForkError(f"VERSION={version} is the pin already")
    _, reference = pristine_package(project, pins)
    wheels = {name: release_wheel(project, pins, version, name) for name in pins.sha256}
    package = release_package(project, pins, version)
    plan = make_plan(project, package, reference=reference)
    if lost := [problem for problem in plan.problems if problem not in plan.moved]:
        raise ForkError.of(
            [
                *lost,
                f"SGLang {version} lies in {package}: mend the edits until only moved "
                f"places are left (python scripts/fork check --tree {package})",
            ]
        )
    moved = "\n".join(plan.moved) or "nothing moved near an anchor"
    if not accept(f"{moved}\n\n{len(plan.moved)} places moved in SGLang {version}."):
        raise ForkError("not accepted; pin and lock are as they were")
    hashes = {path.name: sha256_of(path) for path in wheels.values()}
    text = with_pin(project.pins.read_text("utf-8"), pins, version, hashes)
    project.pins.write_text(text, "utf-8")
    write_lock(project.lock, plan.lock)
    lines = [f"pinned {Pins.load(project).local_version} and wrote the lock; now:"]
    lines += ["  add the version to CHANGELOG.md", "  make test"]
    lines += [f"  {where} names {pins.version}" for where in mentions(project, pins)]
    return "\n".join(lines)


def with_pin(text: str, pins: Pins, version: str, hashes: dict[str, str]) -> str:
    """`pins.toml` with another version and its hashes; our number starts at 1 again."""
    changes = (
        (rf'^version = "{re.escape(pins.version)}"$', f'version = "{version}"'),
        (rf"^number = {pins.number}$", "number = 1"),
    )
    for pattern, new in changes:
        text, count = re.subn(pattern, new, text, count=1, flags=re.M)
        if count != 1:
            raise ForkError(f"scripts/fork/pins.toml has no line {pattern}")
    head = text[: text.index("[sha256]")]
    lines = [f"{json.dumps(name)} = {json.dumps(h)}" for name, h in hashes.items()]
    return head + "\n".join(["[sha256]", *lines]) + "\n"


def mentions(project: Project, pins: Pins) -> list[str]:
    """`file:line` of every other place that names the old version."""
    return [
        f"{path}:{number}"
        for path, text in our_files(project.root).items()
        if not path.startswith(NOT_LISTED)
        for number, line in enumerate(text.split("\n"), 1)
        if pins.version in line
    ]
