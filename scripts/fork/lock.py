"""The lock: what the anchored statements and their neighbours looked like.

It holds kinds and hashes only, no source. An anchor that is still found where
a hash differs means that upstream changed around the edit: a person looks at it.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
from pathlib import Path

from fork import syntax
from fork.edits import Edit
from fork.splice import docstring_of
from fork.syntax import Site

Lock = dict[str, dict[str, dict[str, str]]]  # file -> edit -> role -> Kind:hash

WIDTH = 100  # columns of a source line in a message

ROLES = {
    "anchor": "the anchored statement",
    "previous": "the statement before the anchor",
    "next": "the statement after the anchor",
    "inside": "the statement in the body beside the insertion",
}


def surroundings(site: Site, edit: Edit) -> dict[str, ast.stmt]:
    """The statements that the lock watches for one edit, by role."""
    found = {"anchor": site.head}
    if site.index > 0:
        found["previous"] = site.block[site.index - 1]
    if site.index + 1 < len(site.block):
        found["next"] = site.block[site.index + 1]
    body = getattr(site.node, "body", [])
    if edit.op in ("body_last", "elif_after") and body:
        found["inside"] = body[-1]
    if edit.op == "body_first":
        rest = body[1:] if docstring_of(site.node) else body
        found |= {"inside": rest[0]} if rest else {}
    return found


def entry(site: Site, edit: Edit) -> dict[str, str]:
    """The lock's entry for one edit; an elif arm is told from its siblings."""
    hashes = {
        role: syntax.fingerprint(node)
        for role, node in surroundings(site, edit).items()
    }
    if site.is_elif:
        arm = syntax.chain_of(site.head).index(site.node)
        hashes["anchor"] += f":elif{arm}"
    return hashes


def read_lock(path: Path) -> Lock:
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def write_lock(path: Path, lock: Lock) -> None:
    path.write_text(json.dumps(lock, indent=1, sort_keys=True) + "\n", "utf-8")


def moved(
    edit: Edit, site: Site, locked: dict[str, str], reference: Site | None
) -> list[str]:
    """Problems of one edit whose surroundings differ from the lock.

    `reference` is the same place in pristine bytes, which gives messages the
    old source; None where there are none.
    """
    now = entry(site, edit)
    nodes = surroundings(site, edit)
    old_nodes = surroundings(reference, edit) if reference else {}
    old = entry(reference, edit) if reference else {}
    problems = []
    for role in sorted(now.keys() | locked.keys(), key=list(ROLES).index):
        if now.get(role) == locked.get(role):
            continue
        node = nodes.get(role)
        text = f"{edit.place}, line {(node or site.node).lineno}: {ROLES[role]} "
        text += change(locked.get(role), now.get(role))
        before = None
        if old.get(role) == locked.get(role):
            before = syntax.outline(old_nodes.get(role))
        problems.append(text + source_diff(before, syntax.outline(node)))
    return problems


def change(locked: str | None, now: str | None) -> str:
    def kind(value: str | None) -> str:
        return value.split(":")[0] if value else "nothing"

    if kind(locked) != kind(now):
        return f"moved: it was {kind(locked)}, now it is {kind(now)}"
    return f"changed ({kind(now)})"


def source_diff(old: list[str] | None, new: list[str], limit: int = 12) -> str:
    """The changed lines, indented under a message; long ones split at commas."""
    if old is None:
        lines = [f"+ {line}" for line in split(new)]
    else:
        lines = [x for x in difflib.ndiff(split(old), split(new)) if x[0] in "+-"]
    if len(lines) > limit:
        lines = [*lines[:limit], f"… {len(lines) - limit} more lines"]
    return "".join(f"\n    {line.rstrip()[: 2 * WIDTH]}" for line in lines)


def split(lines: list[str]) -> list[str]:
    return [
        part
        for line in lines
        for part in (re.split(r"(?<=,) ", line) if len(line) > WIDTH else [line])
    ]


def differences(old: Lock, new: Lock) -> list[str]:
    """What rewriting the lock changes, one line each."""
    lines = []
    for file in sorted(old.keys() | new.keys()):
        before, after = old.get(file, {}), new.get(file, {})
        for name in sorted(before.keys() | after.keys()):
            if name not in before:
                lines.append(f"added    {file} [{name}]")
            elif name not in after:
                lines.append(f"removed  {file} [{name}]")
            elif before[name] != after[name]:
                roles = before[name].keys() | after[name].keys()
                which = [r for r in ROLES if r in roles]
                which = [r for r in which if before[name].get(r) != after[name].get(r)]
                lines.append(f"changed  {file} [{name}]: {', '.join(which)}")
    return lines
