"""Operations: the exact text that each one gives."""

from fork import edits, splice
from splicing import check, edit_of, edited


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


def test_every_operation_that_the_schema_knows_exists():
    """Red when the schema accepts an operation that nothing carries out."""
    assert set(splice.OPERATIONS) == edits.OPERATIONS
