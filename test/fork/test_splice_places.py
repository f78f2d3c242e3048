"""Operations on places that do not suit, and around every statement of real files."""

import ast
from pathlib import Path

import pytest
from fork import syntax
from fork.project import ForkError
from fork.source import Source
from fork.splice import apply, ordered, splices
from splicing import edit_of, edited

OWN = sorted((Path(__file__).parents[2] / "scripts" / "fork").glob("*.py"))


@pytest.mark.parametrize(
    "text, edit, message",
    [
        ("x = 1; y = 2\n", edit_of("after", "z", assigns="x"), "same line"),
        ("x = 1; y = 2\n", edit_of("before", "z", assigns="y"), "not start its line"),
        ("if a: x = 1\n", edit_of("body_last", "z", if_=["a"]), "header's line"),
        ("x = 1\n", edit_of("body_first", "z", assigns="x"), "has no body"),
        ("x = 1\n", edit_of("elif_after", "elif b: z", assigns="x"), "not an if"),
        (
            "if a:\n    x\n",
            edit_of("elif_after", "else:\n    z", if_=["a"]),
            "must be an elif",
        ),
        (
            "if a:\n    x\nelif b:\n    y\n",
            edit_of("before", "z", if_=["b"]),
            "elif arm",
        ),
        ("f(a, b)\n", edit_of("keyword", "c,", calls="f"), "lines of their own"),
        ("f(a,\n  b)\n", edit_of("keyword", "c,", calls="f"), "lines of their own"),
        ("f()\n", edit_of("keyword", "c,", calls="f"), "no arguments"),
        (
            "f(\n    f(\n        a,\n    ),\n)\n",
            edit_of("keyword", "c,", calls="f"),
            "called 2 times",
        ),
        ("t = 1, 2\n", edit_of("element", "3,", assigns="t"), "no parentheses"),
        ("t = ()\n", edit_of("element", "3,", assigns="t"), "with entries"),
        ("x = 1\n", edit_of("parameter", "a,", assigns="x"), "not a function"),
        ("def f(a, b): pass\n", edit_of("parameter", "c,", scope="f"), "lines of"),
        (
            "f(a)\n",
            edit_of("replace_argument", "b", calls="f", argument=1),
            "no argument 1",
        ),
        (
            "f(a)\n",
            edit_of("replace_argument", "b", calls="f", argument="k"),
            "no argument 'k'",
        ),
        ("x = 1\r\n", edit_of("after", "z", assigns="x"), "carriage returns"),
    ],
)
def test_unsuitable_places_are_refused(text, edit, message):
    """Red when an operation guesses instead of refusing."""
    with pytest.raises(ForkError, match=message):
        edited(text, edit)


def test_two_edits_of_the_same_argument_are_refused():
    """Red when the later edit silently wins."""
    first = edit_of("replace_argument", "b", calls="f", argument=0, name="first")
    second = edit_of("replace_argument", "c", calls="f", argument=0, name="second")
    with pytest.raises(ForkError, match=r"\[second\].*overlaps with edit \[first\]"):
        edited("f(a)\n", first, second)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
@pytest.mark.parametrize("op", ["before", "after", "body_first", "body_last"])
def test_around_every_statement_of_real_files(path, op):
    """Red when any layout of code makes an insertion miss its statement.

    The corpus is the tool's own source. Taking the marker out of the new syntax
    tree must give the old one, with the marker beside the anchor.
    """
    data = path.read_bytes()
    source, tree = Source(data), ast.parse(data)
    placed = 0
    for site in syntax.sites(tree.body):
        edit = edit_of(op, "MARKER\n")
        try:
            result = apply(data, ordered(splices(source, site, edit)))
        except ForkError:
            continue  # one-line bodies, elif arms
        if op == "before" and isinstance(site.node, ast.Expr) and site.index == 0:
            continue  # a docstring, or an import from __future__ behind one
        after = ast.parse(result)
        assert marked(after, op) == ast.unparse(site.node), site.node.lineno
        assert ast.dump(after) == ast.dump(tree)
        placed += 1
    assert placed or path.name in ("__init__.py", "__main__.py")


def marked(tree: ast.Module, op: str) -> str:
    """Take the marker out of the tree; the statement that it was placed by."""
    for node in ast.walk(tree):
        for block in syntax.blocks_of(node):
            for index, stmt in enumerate(block):
                if isinstance(stmt, ast.Expr) and ast.unparse(stmt) == "MARKER":
                    del block[index]
                    if op in ("body_first", "body_last"):
                        return ast.unparse(node)
                    return ast.unparse(block[index - (op == "after")])
    raise AssertionError("the marker is not in the tree")
