"""Find the one statement that an edit's scope and anchor name."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping

from fork import syntax
from fork.edits import Edit
from fork.project import ForkError
from fork.syntax import Site


def locate(tree: ast.Module, edit: Edit) -> Site:
    """The statement that `edit` anchors to.

    Raises ForkError, naming the edit and what is near, unless exactly one
    statement of exactly one scope matches.
    """
    try:
        scope = find_scope(tree, edit.scope) if edit.scope else None
        if scope is not None and not edit.anchor:
            return scope
        block = tree.body if scope is None else scope.node.body
        candidates = list(syntax.sites(block))
        found = [site for site in candidates if matches(site.node, edit.anchor)]
        if len(found) == 1:
            return found[0]
        if found:
            lines = ", ".join(str(site.node.lineno) for site in found)
            raise ForkError(
                f"anchor {shown(edit.anchor)} is doubled: lines {lines} match; "
                "add a key that tells them apart"
            )
        raise ForkError(
            f"anchor {shown(edit.anchor)} is missing: no statement matches"
            + near_misses(candidates, edit.anchor)
            + elsewhere(tree, edit.anchor)
        )
    except ForkError as error:
        raise ForkError(f"{edit.place}: {error}") from None


def find_scope(tree: ast.Module, scope: str) -> Site:
    """The definition that a dotted class/function path names."""
    block, path = tree.body, []
    site = None
    for name in scope.split("."):
        path.append(name)
        definitions = [
            site
            for site in syntax.sites(block)
            if isinstance(site.node, syntax.DEFINITIONS)
        ]
        found = [site for site in definitions if site.node.name == name]
        if not found:
            names = [site.node.name for site in definitions]
            raise ForkError(f"scope {'.'.join(path)} is missing" + similar(name, names))
        if len(found) > 1:
            lines = ", ".join(str(site.node.lineno) for site in found)
            raise ForkError(f"scope {'.'.join(path)} is doubled: lines {lines}")
        site = found[0]
        block = site.node.body
    assert site is not None
    return site


def matches(node: ast.stmt, anchor: Mapping[str, object]) -> bool:
    """Whether every key of `anchor` holds on this one statement."""
    return all(holds(node, key, value, anchor) for key, value in anchor.items())


def holds(
    node: ast.stmt, key: str, value: object, anchor: Mapping[str, object]
) -> bool:
    parts = syntax.header(node)
    match key:
        case "assigns":
            return value in syntax.targets(node)
        case "calls":
            return bool(anchored_calls(node, anchor))
        case "keyword":
            return True  # a condition on the call, see anchored_calls
        case "reads":
            return bare(value) <= syntax.reads(parts)
        case "if":
            return isinstance(node, ast.If) and syntax.reads(parts) == bare(value)
        case "has_call":
            body = list(syntax.own_body(node))
            return all(syntax.calls(body, name) for name in as_list(value))
        case "has_assign":
            names = {n for stmt in syntax.own_body(node) for n in syntax.targets(stmt)}
            return set(as_list(value)) <= names
        case "defines":
            return isinstance(node, syntax.DEFINITIONS) and node.name == value
        case "imports":
            return value in imported(node)
        case "deletes":
            return isinstance(node, ast.Delete) and value in map(
                syntax.dotted, node.targets
            )
        case "returns":
            return isinstance(node, ast.Return)
    raise AssertionError(key)


def anchored_calls(node: ast.stmt, anchor: Mapping[str, object]) -> list[ast.Call]:
    """The calls in the statement's header that `calls` and `keyword` name."""
    found = syntax.calls(syntax.header(node), str(anchor["calls"]))
    if "keyword" in anchor:
        found = [
            call
            for call in found
            if any(keyword.arg == anchor["keyword"] for keyword in call.keywords)
        ]
    return found


def imported(node: ast.stmt) -> list[str]:
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return []
    return [name for a in node.names for name in {a.asname or a.name.split(".")[0]}]


def bare(names: object) -> set[str]:
    """`f` and `f()` name the same read."""
    return {name.removesuffix("()") for name in as_list(names)}


def as_list(value: object) -> list[str]:
    return list(value) if isinstance(value, list) else [str(value)]


def shown(anchor: Mapping[str, object]) -> str:
    def text(value: object) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list):
            return "[" + ", ".join(f'"{item}"' for item in value) + "]"
        return f'"{value}"'

    return "{ " + ", ".join(f"{k} = {text(v)}" for k, v in anchor.items()) + " }"


def near_misses(candidates: list[Site], anchor: Mapping[str, object]) -> str:
    """What the scope does have under the anchor's keys, for the message."""
    if len(anchor) > 1:
        lines = []
        for key, value in anchor.items():
            if key == "keyword":
                continue
            part = {key: value}
            fits = [s.node.lineno for s in candidates if matches(s.node, part)]
            at = ", ".join(map(str, fits)) or "none"
            lines.append(f"\n    {shown(part)} alone holds at lines: {at}")
        return "".join(lines)
    ((key, value),) = anchor.items()
    if key in ("if", "reads"):
        wanted = bare(value)
        kinds = (ast.If,) if key == "if" else (ast.stmt,)
        sets = [
            (site.node.lineno, syntax.reads(syntax.header(site.node)))
            for site in candidates
            if isinstance(site.node, kinds)
        ]
        close = sorted(
            (len(found ^ wanted), line, found) for line, found in sets if found & wanted
        )[:3]
        return "".join(f"\n    line {n} reads {sorted(f)}" for _, n, f in close)
    known = [name for site in candidates for name in names_of(site.node, key)]
    return similar(as_list(value)[0], known)


def elsewhere(tree: ast.Module, anchor: Mapping[str, object]) -> str:
    """The scopes in which the anchor does match, for the message."""
    found: list[str] = []

    def visit(block: list[ast.stmt], path: str) -> None:
        for site in syntax.sites(block):
            if matches(site.node, anchor):
                found.append(f"{path or 'module level'} (line {site.node.lineno})")
            if isinstance(site.node, syntax.DEFINITIONS):
                visit(site.node.body, f"{path}.{site.node.name}".lstrip("."))

    visit(tree.body, "")
    return f"\n    it matches in scope: {', '.join(found[:6])}" if found else ""


def names_of(node: ast.stmt, key: str) -> Iterator[str]:
    if "assign" in key:
        yield from syntax.targets(node)
    elif "call" in key:
        for part in syntax.header(node):
            for call in ast.walk(part):
                if isinstance(call, ast.Call):
                    yield syntax.dotted(call.func) or ""
    elif key == "imports":
        yield from imported(node)
    elif isinstance(node, syntax.DEFINITIONS):
        yield node.name


def similar(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, sorted(set(known) - {""}), 3, 0.6)
    return f"; near it: {', '.join(close)}" if close else ""
