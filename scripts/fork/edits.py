"""Edits as data: one TOML file per upstream file, read and validated."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field

from fork.project import ForkError, Project

OPERATIONS = {
    "before",
    "after",
    "body_first",
    "body_last",
    "elif_after",
    "keyword",
    "element",
    "parameter",
    "replace_argument",
}
# What each anchor key holds: a name, a list of names, either, or a truth value.
ANCHOR_KEYS: dict[str, tuple[type, ...]] = {
    "assigns": (str,),
    "calls": (str,),
    "keyword": (str,),
    "reads": (list,),
    "if": (list,),
    "has_call": (str, list),
    "has_assign": (str, list),
    "defines": (str,),
    "imports": (str,),
    "deletes": (str,),
    "returns": (bool,),
}
MAX_LINES = 12  # of one insert: more is logic, which belongs in a file of ours
REQUIRED = {"name", "op", "insert", "why", "retires"}
OPTIONAL = {"scope", "anchor", "engine", "argument"}


@dataclass(frozen=True, eq=False)
class Edit:
    """One change of one upstream file.

    `file` is relative to the package (`srt/layers/x.py`), `source` the TOML
    file that declares the edit, as messages name it.
    """

    file: str
    source: str
    name: str
    op: str
    insert: str
    why: str
    retires: str
    scope: str = ""
    anchor: Mapping[str, object] = field(default_factory=dict)
    engine: str = ""
    argument: int | str | None = None

    @property
    def place(self) -> str:
        """How messages name this edit."""
        scope = self.scope or "module level"
        return f"{self.source} [{self.name}] sglang/{self.file}, {scope}"


def load_edits(project: Project) -> list[Edit]:
    """Every edit of the project, files in sorted order.

    Raises ForkError naming all malformed entries.
    """
    edits: list[Edit] = []
    problems: list[str] = []
    for path in sorted(project.edits.rglob("*.toml")):
        source = project.name(path)
        try:
            data = tomllib.loads(path.read_text("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            problems.append(f"{source}: {error}")
            continue
        file = path.relative_to(project.edits).with_suffix(".py").as_posix()
        entries = data.get("edit")
        if set(data) != {"edit"} or not isinstance(entries, list):
            problems.append(f"{source}: expected only [[edit]] tables")
            continue
        names: set[str] = set()
        for number, entry in enumerate(entries, 1):
            name = entry.get("name")
            label = f"{source} [{name or f'edit {number}'}]"
            faults = faults_of(entry)
            if name in names:
                faults.append("name is used twice in this file")
            names.add(name)
            problems += [f"{label}: {fault}" for fault in faults]
            if not faults:
                edits.append(Edit(file=file, source=source, **entry))
    if problems:
        raise ForkError.of(problems)
    return edits


def faults_of(entry: Mapping[str, object]) -> list[str]:
    """What is wrong with one [[edit]] table, [] when it is well formed."""
    faults = [f"{key} is missing" for key in sorted(REQUIRED - set(entry))]
    unknown = set(entry) - REQUIRED - OPTIONAL
    faults += [f"unknown key {key}" for key in sorted(unknown)]
    for key in sorted((REQUIRED | {"scope"}) & set(entry)):
        if not isinstance(entry[key], str) or not entry[key].strip():
            faults.append(f"{key} must be a text that is not empty")
    if entry.get("engine", "cpu") != "cpu":
        faults.append(f'engine = {entry["engine"]!r}; only "cpu" is known')
    lines = sum(bool(x.strip()) for x in str(entry.get("insert", "")).split("\n"))
    if lines > MAX_LINES:
        faults.append(
            f"insert has {lines} lines, at most {MAX_LINES}; move the logic into a "
            "file under python/sglang"
        )
    anchor = entry.get("anchor", {})
    if not isinstance(anchor, dict):
        return [*faults, "anchor must be a table"]
    faults += anchor_faults(anchor)
    op = entry.get("op")
    if op not in OPERATIONS:
        known = ", ".join(sorted(OPERATIONS))
        return [*faults, f"op = {op!r}; known are {known}"]
    if not anchor and not entry.get("scope"):
        faults.append("needs an anchor or a scope")
    if op in ("keyword", "replace_argument") and "calls" not in anchor:
        faults.append(f"op {op} needs calls in its anchor")
    if (op == "replace_argument") != ("argument" in entry):
        faults.append("argument belongs to op replace_argument, which needs it")
    argument = entry.get("argument", 0)
    if isinstance(argument, bool) or not isinstance(argument, (int, str)):
        faults.append("argument must be a position from 0 or a keyword's name")
    return faults


def anchor_faults(anchor: Mapping[str, object]) -> list[str]:
    faults = []
    for key, value in anchor.items():
        types = ANCHOR_KEYS.get(key)
        if types is None:
            known = ", ".join(ANCHOR_KEYS)
            faults.append(f"unknown anchor key {key}; known are {known}")
        elif not isinstance(value, types) or value in ("", [], False):
            wanted = " or ".join(kind.__name__ for kind in types)
            faults.append(f"anchor key {key} must be a {wanted} that is not empty")
        elif isinstance(value, list) and not all(isinstance(x, str) for x in value):
            faults.append(f"anchor key {key} must hold names only")
    if "keyword" in anchor and "calls" not in anchor:
        faults.append("anchor key keyword needs calls beside it")
    return faults
