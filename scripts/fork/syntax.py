"""What an upstream statement says: dotted names, headers, blocks, fingerprints.

Only `ast` is used and nothing here prints source that is kept: fingerprints
go into the lock, outlines only into messages.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Site:
    """A statement, the block it stands in, and its index there.

    `head` is the first `if` of the chain when the statement is an elif arm,
    else the statement itself; block and index are those of the head.
    """

    node: ast.stmt
    block: list[ast.stmt]
    index: int
    head: ast.stmt

    @property
    def is_elif(self) -> bool:
        return self.node is not self.head


def blocks_of(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The statement lists directly inside `node`, in source order."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        children = getattr(node, name, None)
        if isinstance(children, list) and children:
            if isinstance(children[0], ast.stmt):
                yield children
            else:
                for child in children:
                    yield from blocks_of(child)


def elif_arm(node: ast.stmt) -> ast.If | None:
    """The elif arm that follows `node`; an `if` inside `else:` is not one."""
    if isinstance(node, ast.If) and len(node.orelse) == 1:
        arm = node.orelse[0]
        if isinstance(arm, ast.If) and arm.col_offset == node.col_offset:
            return arm
    return None


def sites(block: list[ast.stmt]) -> Iterator[Site]:
    """Every statement at any depth below `block`, not inside nested definitions."""
    for index, head in enumerate(block):
        arm: ast.stmt | None = head
        while arm is not None:
            yield Site(arm, block, index, head)
            following = elif_arm(arm)
            if not isinstance(arm, DEFINITIONS):
                for nested in blocks_of(arm):
                    if following is None or nested is not arm.orelse:
                        yield from sites(nested)
            arm = following


def dotted(node: ast.AST) -> str | None:
    """The dotted name of an expression, calls as `f().x`; None if it has none."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            inner = dotted(value)
            if inner is None and isinstance(value, ast.Subscript):
                inner = ast.unparse(value)
            return None if inner is None else f"{inner}.{attr}"
        case ast.Call(func=func):
            inner = dotted(func)
            return None if inner is None else f"{inner}()"
    return None


def header(node: ast.stmt) -> list[ast.AST]:
    """The expressions that belong to the statement itself, not to its blocks."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            found = [*node.decorator_list, node.args, node.returns]
        case ast.ClassDef():
            found = [*node.decorator_list, *node.bases, *node.keywords]
        case ast.If() | ast.While():
            found = [node.test]
        case ast.For() | ast.AsyncFor():
            found = [node.target, node.iter]
        case ast.With() | ast.AsyncWith():
            found = [*node.items]
        case ast.Try() | ast.TryStar():
            found = [handler.type for handler in node.handlers]
        case ast.Match():
            found = [node.subject]
            for case in node.cases:
                found += [case.pattern, case.guard]
        case _:
            found = [node]
    return [part for part in found if part is not None]


def reads(parts: list[ast.AST]) -> set[str]:
    """The outermost dotted chains that are loaded in `parts`."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        name = dotted(node)
        if name is not None and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            found.add(name.removesuffix("()"))
        for child in ast.iter_child_nodes(node) if name is None else inside_chain(node):
            visit(child)

    for part in parts:
        visit(part)
    return found


def inside_chain(node: ast.AST) -> list[ast.AST]:
    """What a dotted chain reads besides itself: call arguments, subscripts."""
    match node:
        case ast.Attribute(value=value):
            return inside_chain(value)
        case ast.Call(func=func, args=args, keywords=keywords):
            return [*inside_chain(func), *args, *keywords]
        case ast.Subscript(value=value, slice=index):
            return [*inside_chain(value), index]
    return []


def calls(parts: list[ast.AST], name: str) -> list[ast.Call]:
    """The calls of `name` anywhere in `parts`."""
    return [
        node
        for part in parts
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and dotted(node.func) == name
    ]


def targets(node: ast.stmt) -> list[str]:
    """The names that an assignment gives a value, tuple elements one by one."""
    match node:
        case ast.Assign(targets=found):
            todo = list(found)
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            todo = [target]
        case _:
            return []
    names = []
    while todo:
        target = todo.pop(0)
        if isinstance(target, (ast.Tuple, ast.List)):
            todo += target.elts
        elif isinstance(target, ast.Starred):
            todo.append(target.value)
        else:
            names.append(dotted(target) or ast.unparse(target))
    return names


def own_body(node: ast.stmt) -> list[ast.stmt]:
    """All statements at any depth in the body of a compound statement."""
    if isinstance(node, ast.Match):
        roots = [stmt for case in node.cases for stmt in case.body]
    else:
        roots = getattr(node, "body", [])
    return [n for root in roots for n in ast.walk(root) if isinstance(n, ast.stmt)]


def canonical(value: object) -> str:
    """A text of a syntax tree that is the same on every supported Python.

    Fields that are empty are left out: later versions add such fields.
    """
    if isinstance(value, ast.JoinedStr):
        # Python 3.12.0 and 3.12.1 put an empty text behind a nested format field.
        parts = [p for p in value.values if getattr(p, "value", None) != ""]
        return f"JoinedStr({','.join(map(canonical, parts))})"
    if isinstance(value, ast.AST):
        fields = [
            f"{name}={canonical(child)}"
            for name, child in ast.iter_fields(value)
            if child not in (None, []) and name not in ("ctx", "kind", "type_comment")
        ]
        return f"{type(value).__name__}({','.join(fields)})"
    if isinstance(value, list):
        return f"[{','.join(map(canonical, value))}]"
    return repr(value)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def chain_of(node: ast.stmt) -> list[ast.stmt]:
    """An `if` with its elif arms; any other statement alone."""
    chain = [node]
    while (arm := elif_arm(chain[-1])) is not None:
        chain.append(arm)
    return chain


def fingerprint(node: ast.stmt) -> str:
    """`Kind:hash` of a whole statement; of a function or class only the header counts.

    A body beside an edit may change what the edit means. A definition is a place of its
    own: what happens inside is watched by the edits that are in there.
    """
    kind = type(node).__name__
    names, parts = [], [node]
    if isinstance(node, DEFINITIONS):
        names, parts = [node.name], header(node)
    return f"{kind}:{digest(kind + canonical(names) + canonical(parts))}"


def outline(node: ast.stmt | None) -> list[str]:
    """The lines that show a person what `fingerprint` has looked at."""
    if node is None:
        return ["(none)"]
    lines = ast.unparse(node).splitlines()
    if isinstance(node, DEFINITIONS):
        return lines[: len(node.decorator_list) + 1]
    return lines
