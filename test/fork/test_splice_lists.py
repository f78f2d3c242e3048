"""Operations inside brackets: calls, displays and parameter lists."""

from splicing import check, edit_of


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
