"""The schema: what a malformed edit file is told."""

import pytest
from fork.edits import load_edits
from fork.project import ForkError

GOOD = {"anchor": {"assigns": "x"}, "op": "after", "insert": "y = 2"}


def test_a_good_file_becomes_edits(workshop):
    """Red when the mirrored path or a field is lost on the way."""
    workshop.edit("srt/deep/m.py", **GOOD, scope="A.b", engine="cpu")
    workshop.edit("srt/deep/m.py", **GOOD, name="second")
    first, second = load_edits(workshop.project)
    assert (first.file, first.scope, first.engine) == ("srt/deep/m.py", "A.b", "cpu")
    assert (first.anchor, first.op, first.insert) == (
        {"assigns": "x"},
        "after",
        "y = 2",
    )
    assert (second.name, second.scope, second.engine) == ("second", "", "")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"why": None}, "why is missing"),
        ({"retires": None}, "retires is missing"),
        ({"why": " "}, "why must be a text that is not empty"),
        ({"wy": "x"}, "unknown key wy"),
        ({"op": "behind"}, "op = 'behind'; known are after, before"),
        ({"anchor": {"assign": "x"}}, "unknown anchor key assign"),
        ({"anchor": {"if": "x"}}, "anchor key if must be a list"),
        ({"anchor": {"assigns": ["x"]}}, "anchor key assigns must be a str"),
        ({"anchor": {"reads": [1]}}, "anchor key reads must hold names only"),
        ({"anchor": {"returns": False}}, "anchor key returns must be a bool"),
        ({"anchor": {"keyword": "x"}}, "anchor key keyword needs calls"),
        ({"anchor": None}, "needs an anchor or a scope"),
        ({"op": "keyword"}, "op keyword needs calls"),
        ({"argument": 1}, "argument belongs to op replace_argument"),
        ({"op": "replace_argument", "anchor": {"calls": "f"}}, "argument belongs to"),
        ({"engine": "gpu"}, "engine = 'gpu'; only"),
        ({"insert": "x\n" * 13}, "insert has 13 lines, at most 12"),
    ],
)
def test_a_malformed_edit_is_named(workshop, change, message):
    """Red when an edit that cannot mean what it says is accepted."""
    fields = {key: v for key, v in (GOOD | change).items() if v is not None}
    missing = [key for key, value in change.items() if value is None]
    workshop.edit("srt/m.py", **fields)
    path = workshop.project.edits / "srt/m.toml"
    lines = path.read_text().splitlines()
    lines = [x for x in lines if not any(x.startswith(f"{key} =") for key in missing)]
    path.write_text("\n".join(lines))
    with pytest.raises(ForkError) as error:
        load_edits(workshop.project)
    assert f"python/edits/srt/m.toml [edit-1]: {message}" in str(error.value)


def test_all_problems_of_all_files_are_told_at_once(workshop):
    """Red when the first malformed file hides the next."""
    workshop.edit("a.py", **GOOD)
    workshop.edit("a.py", **GOOD, name="edit-1")
    workshop.write("python/edits/b.toml", "not toml")
    workshop.write("python/edits/c.toml", 'title = "x"\n')
    with pytest.raises(ForkError) as error:
        load_edits(workshop.project)
    message = str(error.value)
    assert "python/edits/a.toml [edit-1]: name is used twice in this file" in message
    assert "python/edits/b.toml: " in message
    assert "python/edits/c.toml: expected only [[edit]] tables" in message
    assert message.endswith("3 problems")
