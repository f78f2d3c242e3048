"""Operations: the exact text that each one gives, and the places it refuses."""

import ast
import textwrap
from pathlib import Path

import pytest
from fork import syntax
from fork.edits import Edit
from fork.locate import locate
from fork.project import ForkError
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


def test_before_stands_above_decorators_and_attached_comments():
    """Red when a comment is torn from its statement."""
    check(
        """\
        x = 1

        # About f.
        @cached
        def f():
            # About y.
            y = 2
        """,
        """\
        x = 1

        new = 0
        # About f.
        @cached
        def f():
            inner = 0
            # About y.
            y = 2
        """,
        edit_of("before", "new = 0", defines="f"),
        edit_of("before", "inner = 0", scope="f", assigns="y"),
    )


def test_the_comment_that_opens_a_file_stays_first():
    """Red when lines are put above a licence header."""
    check(
        "# Licence.\nx = 1\n",
        "# Licence.\nnew\nx = 1\n",
        edit_of("before", "new", assigns="x"),
    )


def test_after_follows_a_statement_of_several_lines():
    """Red when the insertion lands inside the statement or before its else."""
    check(
        """\
        x = f(
            1,
        )  # note
        for a in b:
            pass
        else:
            pass
        """,
        """\
        x = f(
            1,
        )  # note
        one = 1
        for a in b:
            pass
        else:
            pass
        two = 2
        """,
        edit_of("after", "one = 1", calls="f"),
        edit_of("after", "two = 2", reads=["b"]),
    )


def test_body_first_follows_the_docstring():
    """Red when a function loses its docstring."""
    check(
        '''\
        def f():
            """Says.

            More.
            """
            x = 1

        def g():
            # About x.
            x = 1

        def h():
            """Only this."""
        ''',
        '''\
        def f():
            """Says.

            More.
            """
            new = 0
            x = 1

        def g():
            new = 0
            # About x.
            x = 1

        def h():
            """Only this."""
            new = 0
        ''',
        *(edit_of("body_first", "new = 0", scope=name, name=name) for name in "fgh"),
    )


def test_body_last_of_nested_blocks_at_one_line():
    """Red when the outer block's lines cut into the inner block."""
    check(
        """\
        def f():
            if a:
                x = 1
            # Trailing.
        y = 2
        """,
        """\
        def f():
            if a:
                x = 1
                inner = 0
            after = 0
            outer = 0
            # Trailing.
        y = 2
        """,
        edit_of("after", "after = 0", scope="f", if_=["a"], name="b"),
        edit_of("body_last", "outer = 0", scope="f", name="c"),
        edit_of("body_last", "inner = 0", scope="f", if_=["a"], name="a"),
    )


def test_elif_after_adds_an_arm_where_the_anchored_arm_ends():
    """Red when the arm lands behind else, or behind what follows the chain."""
    check(
        """\
        if a:
            x = 1
        elif b:
            x = 2
        else:
            x = 3
        """,
        """\
        if a:
            x = 1
        elif new:
            x = 4
        elif b:
            x = 2
        elif last:
            x = 5
        else:
            x = 3
        """,
        edit_of("elif_after", "elif new:\n    x = 4\n", if_=["a"]),
        edit_of("elif_after", "elif last:\n    x = 5\n", if_=["b"]),
    )


def test_an_arm_comes_before_what_follows_the_chain():
    """Red when equal offsets are ordered by the file and not by structure."""
    check(
        "if a:\n    x = 1\n",
        "if a:\n    x = 1\n    y = 1\nelif b:\n    x = 2\nz = 3\n",
        edit_of("after", "z = 3", if_=["a"], name="1"),
        edit_of("elif_after", "elif b:\n    x = 2", if_=["a"], name="2"),
        edit_of("body_last", "y = 1", if_=["a"], name="3"),
    )


def test_keyword_with_and_without_a_trailing_comma():
    """Red when the comma is lost, doubled, or put inside a parenthesis or comment."""
    check(
        """\
        f(
            a,
            b=1,  # note, with commas
        )
        g(
            a, b=(1
                  + 2)  # note
            # another
        )
        """,
        """\
        f(
            a,
            b=1,  # note, with commas
            new=0,
        )
        g(
            a, b=(1
                  + 2),  # note
            # another
            new=0,
            **more,
        )
        """,
        edit_of("keyword", "new=0,", calls="f"),
        edit_of("keyword", "new=0,", calls="g", name="1"),
        edit_of("keyword", "**more,", calls="g", name="2"),
    )


def test_element_of_each_kind_of_display():
    """Red when an entry is added to the wrong bracket."""
    check(
        """\
        t = (
            "a",
            "b"
        )
        d: dict = {
            "k": [1, 2],
        }
        s = frozenset({
            1,
        })
        l = [
            (1)
        ]
        """,
        """\
        t = (
            "a",
            "b",
            "c",
        )
        d: dict = {
            "k": [1, 2],
            "n": 3,
        }
        s = frozenset({
            1,
            2,
        })
        l = [
            (1),
            2,
        ]
        """,
        edit_of("element", '"c",', assigns="t"),
        edit_of("element", '"n": 3,', assigns="d"),
        edit_of("element", "2,", assigns="s"),
        edit_of("element", "2,", assigns="l"),
    )


def test_parameter_of_each_kind_of_list():
    """Red when a parameter follows **kwargs or lands behind the arrow."""
    check(
        """\
        def f(
            a,
            b: int = (3)
        ) -> dict[str, tuple()]:
            return a

        def g(
            a,
            *args: int,
            **kwargs,
        ):
            return a

        def h(
            a=f(1),  # first
            /,
        ):
            return a
        """,
        """\
        def f(
            a,
            b: int = (3),
            new=0,
        ) -> dict[str, tuple()]:
            return a

        def g(
            a,
            *args: int,
            new=0,
            **kwargs,
        ):
            return a

        def h(
            a=f(1),  # first
            /,
            new=0,
        ):
            return a
        """,
        *(edit_of("parameter", "new=0,", scope=name, name=name) for name in "fgh"),
    )


def test_replace_argument_by_place_and_by_name():
    """Red when columns are counted in characters, or a name replaces its keyword."""
    check(
        """\
        x = f("äöü€", a, key=b.c)  # é
        """,
        """\
        x = f("äöü€", new(1), key=other)  # é
        """,
        edit_of("replace_argument", "new(1)", calls="f", argument=1),
        edit_of("replace_argument", "other", calls="f", argument="key", name="2"),
    )


def test_blank_lines_and_order_of_an_insert_are_kept():
    """Red when blank lines around a function are lost, or edits swap."""
    check(
        "x = 1\n",
        "x = 1\n\n\ndef f():\n    if a:\n        b\n\n\none\ntwo\n",
        edit_of("after", "\n\ndef f():\n    if a:\n        b\n\n\n", assigns="x"),
        edit_of("after", "  one\n", assigns="x", name="2"),
        edit_of("after", "two", assigns="x", name="3"),
    )


def test_a_file_without_a_last_line_end():
    """Red when the insertion is glued to the last line."""
    assert edited("x = 1", edit_of("after", "y = 2", assigns="x")) == "x = 1\ny = 2\n"


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


OWN = sorted((Path(__file__).parents[2] / "scripts" / "fork").glob("*.py"))


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


def test_every_operation_that_the_schema_knows_exists():
    """Red when the schema accepts an operation that nothing carries out."""
    from fork import edits, splice

    assert set(splice.OPERATIONS) == edits.OPERATIONS
