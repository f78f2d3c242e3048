"""Edits made in a line, and what they give on a text; shared by the splice tests."""

import ast
import textwrap

from fork.edits import Edit
from fork.locate import locate
from fork.source import Source
from fork.splice import apply, ordered, splices


def edit_of(op: str, insert: str, *, scope="", name="mark", argument=None, **anchor):
    return Edit(
        file="m.py",
        source="m.toml",
        name=name,
        op=op,
        insert=insert,
        why="w",
        retires="r",
        scope=scope,
        anchor={key.rstrip("_"): value for key, value in anchor.items()},
        argument=argument,
    )


def edited(text: str, *edits: Edit) -> str:
    data = textwrap.dedent(text).encode()
    source, tree = Source(data), ast.parse(data)
    found = [s for e in edits for s in splices(source, locate(tree, e), e)]
    result = apply(data, ordered(found)).decode()
    ast.parse(result)
    return result


def check(before: str, after: str, *edits: Edit) -> None:
    assert edited(before, *edits) == textwrap.dedent(after)
