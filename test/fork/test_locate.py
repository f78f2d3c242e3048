"""Anchors: each key finds its statement, and only one statement is accepted."""

import ast

import pytest
from fork import syntax
from fork.edits import Edit
from fork.locate import locate
from fork.project import ForkError

SOURCE = '''\
"""A module."""
import os.path
from shop import till as counter

LIMIT = 3


class Shop:
    """A class."""

    stock: int = 0

    def open(self, day, guests=LIMIT):
        a, self.b = self.count(day), 2
        self.total[day] = a
        self.hours += 1
        if day and get_rules().strict:
            ring(day, loud=True)
            ring(day)
        elif day:
            del self.b
            tidy()
        else:
            if day:
                a = 5
        for guest in self.guests(day):
            serve(guest)
        with lights() as lamp:
            lamp.dim = self.rows[0].level
        try:
            close()
        except Late:
            a = 7
        return self.finish(a)

    def shut(self):
        def tidy_up():
            nested = 1
            return nested

        return tidy_up


def helper():
    return LIMIT
'''
OPEN = "Shop.open"


def find(scope="", **anchor):
    edit = Edit(
        file="a/shop.py",
        source="python/edits/a/shop.toml",
        name="mark",
        op="after",
        insert="x",
        why="w",
        retires="r",
        scope=scope,
        anchor={key.rstrip("_"): value for key, value in anchor.items()},
    )
    return locate(ast.parse(SOURCE), edit)


def text_at(site) -> str:
    return SOURCE.splitlines()[site.node.lineno - 1].strip()


@pytest.mark.parametrize(
    "scope, anchor, expected",
    [
        ("", {"assigns": "LIMIT"}, "LIMIT = 3"),
        ("", {"imports": "os"}, "import os.path"),
        ("", {"imports": "counter"}, "from shop import till as counter"),
        ("", {"defines": "Shop"}, "class Shop:"),
        ("Shop", {"assigns": "stock"}, "stock: int = 0"),
        ("Shop", {"defines": "shut"}, "def shut(self):"),
        (OPEN, {"assigns": "self.b"}, "a, self.b = self.count(day), 2"),
        (OPEN, {"assigns": "self.hours"}, "self.hours += 1"),
        (OPEN, {"assigns": "self.total[day]"}, "self.total[day] = a"),
        (OPEN, {"calls": "self.count"}, "a, self.b = self.count(day), 2"),
        (OPEN, {"calls": "ring", "keyword": "loud"}, "ring(day, loud=True)"),
        (OPEN, {"calls": "self.guests"}, "for guest in self.guests(day):"),
        (OPEN, {"calls": "lights"}, "with lights() as lamp:"),
        (OPEN, {"if_": ["day", "get_rules().strict"]}, None),
        (OPEN, {"if_": ["day"], "has_call": "tidy"}, "elif day:"),
        (OPEN, {"if_": ["day"], "has_assign": "a"}, "if day:"),
        (OPEN, {"has_call": ["ring"]}, "if day and get_rules().strict:"),
        (OPEN, {"reads": ["self.rows[0].level"]}, "lamp.dim = self.rows[0].level"),
        (OPEN, {"reads": ["Late"]}, "try:"),
        (OPEN, {"deletes": "self.b"}, "del self.b"),
        (OPEN, {"returns": True}, "return self.finish(a)"),
        (OPEN, {"returns": True, "calls": "self.finish"}, "return self.finish(a)"),
        ("Shop.shut.tidy_up", {"assigns": "nested"}, "nested = 1"),
        ("Shop.shut", {"returns": True}, "return tidy_up"),
        (OPEN, {}, "def open(self, day, guests=LIMIT):"),
    ],
)
def test_each_key_finds_its_statement(scope, anchor, expected):
    """Red when a key looks at a body where it should look at the header, or misses."""
    found = text_at(find(scope, **anchor))
    assert found == (expected or "if day and get_rules().strict:")


def test_a_call_may_be_named_with_or_without_parentheses():
    """Red when `f()` and `f` stop naming the same read."""
    assert text_at(find(OPEN, reads=["self.guests()"])).startswith("for guest")
    assert text_at(find(OPEN, reads=["self.guests"])).startswith("for guest")


@pytest.mark.parametrize(
    "scope, anchor, words",
    [
        (OPEN, {"calls": "ring"}, ["doubled", "lines 18, 19"]),
        (OPEN, {"assigns": "a"}, ["doubled", "lines 14, 25, 33"]),
        (OPEN, {"calls": "rings"}, ["missing", "near it: ring"]),
        (OPEN, {"assigns": "self.total"}, ["missing", "self.total[day]"]),
        (OPEN, {"if_": ["get_rules().strict"]}, ["missing", "line 17 reads"]),
        (
            OPEN,
            {"assigns": "nested"},
            ["matches in scope: Shop.shut.tidy_up (line 38)"],
        ),
        ("Shop.opens", {"calls": "ring"}, ["scope Shop.opens is missing", "open"]),
        (
            OPEN,
            {"if_": ["day"], "has_call": "ring"},
            ['{ if = ["day"] } alone holds at lines: 20, 24'],
        ),
    ],
)
def test_anything_but_one_match_is_refused(scope, anchor, words):
    """Red when a missing or doubled anchor passes, or the message loses the place."""
    with pytest.raises(ForkError) as error:
        find(scope, **anchor)
    message = str(error.value)
    place = f"python/edits/a/shop.toml [mark] sglang/a/shop.py, {scope}: "
    assert [word for word in (place, *words) if word not in message] == [], message


def test_a_scope_that_is_defined_twice_is_refused():
    """Red when the first of two definitions would be taken silently."""
    tree = ast.parse("if x:\n    def f(): pass\nelse:\n    def f(): pass\n")
    edit = Edit("f.py", "f.toml", "n", "body_last", "x", "w", "r", scope="f")
    with pytest.raises(ForkError, match="scope f is doubled: lines 2, 4"):
        locate(tree, edit)


def test_every_statement_is_a_candidate_once():
    """Red when an elif arm or a handler's body is left out or visited twice."""
    function = ast.parse(SOURCE).body[4].body[2]
    lines = sorted(site.node.lineno for site in syntax.sites(function.body))
    statements = [n for n in ast.walk(function) if isinstance(n, ast.stmt)]
    assert lines == sorted(n.lineno for n in statements if n is not function)


def test_the_arm_of_a_chain_knows_its_head():
    """Red when neighbours of an elif arm would be looked up inside the chain."""
    arm = find(OPEN, if_=["day"], has_call="tidy")
    assert arm.is_elif and arm.head.lineno == 17 and arm.index == 3
    nested = find(OPEN, if_=["day"], has_assign="a")
    assert not nested.is_elif and len(nested.block) == 1
