"""Other releases: which take the edits (`compat`), and moving the pin (`bump`)."""

import hashlib
import json
import tomllib

import pytest
from fork import compat as compat_module
from fork.compat import around, order
from fork.engine_tests import NOT_ASKED, unmet
from fork.pins import Pins

FILES = {"m.py": "before = 1\nx = f(1)\n", "n.py": "y = 1\n"}
NEW = "1.2.4"


@pytest.fixture
def shop(workshop):
    workshop.upstream(FILES)
    place = {"op": "after", "insert": "z = 2"}
    workshop.edit("m.py", **place, anchor={"assigns": "x"}, name="one")
    workshop.edit("n.py", **place, anchor={"assigns": "y"}, name="two")
    workshop.write("python/sglang/ours.py", "")
    assert workshop.run("lock")[0] == 0
    return workshop


def rows(shop, *versions, serve=False):
    serving = ["--engine-tests"] if serve else []
    flags = [word for version in versions for word in ("--version", version)]
    code, output = shop.run("compat", *flags, *serving)
    assert code == 0, output
    return json.loads((shop.root / "build/compat.json").read_text()), output


def test_each_release_says_what_lands_and_why_the_rest_does_not(shop):
    """Red when a moved place, a lost file or a covered file counts as applied."""
    shop.upstream({**FILES, "m.py": "before = 2\nx = f(1)\n"}, "1.2.2")
    shop.upstream({"m.py": FILES["m.py"], "ours.py": ""}, NEW)
    found, output = rows(shop, "1.2.2", "1.2.3", NEW)
    old, pin, new = found
    assert (pin["edits"], pin["applied"], pin["refused"]) == (2, 2, [])
    assert (old["applied"], new["applied"]) == (1, 1)
    (entry,) = old["refused"]
    assert "[one] sglang/m.py" in entry["edit"]
    assert "the statement before the anchor changed" in entry["reasons"][0]
    (entry,) = new["refused"]
    assert "n.py does not exist" in entry["reasons"][0]
    assert "ours.py covers upstream's sglang/ours.py" in new["other_problems"][0]
    assert old["engine_tests"] == NOT_ASKED
    assert f"| 1.2.2 | 2 | 1 | 1 | 0 | {NOT_ASKED} |" in output


SERVED = """\
import json, pathlib, sys
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
text = (out / "tree/python/sglang/m.py").read_text()
if "z = 2" not in text or (out / "tree/python/sglang/ours.py").read_text():
    sys.exit("served: request 0 differs\\nmore")
report = {"served": {"requests": 2, "output_tokens": 9}}
(out / "report.json").write_text(json.dumps(report))
"""


def test_the_engine_is_tried_where_every_edit_lands(shop):
    """Red when a release with refused edits is served, or served without the edits."""
    shop.write("scripts/pr_check.py", SERVED)
    shop.upstream({**FILES, "m.py": "before = 2\nx = f(1)\n"}, "1.2.2")
    shop.upstream({**FILES, "o.py": ""}, NEW)
    found, output = rows(shop, "1.2.2", NEW, serve=True)
    old, new = (row["engine_tests"] for row in found)
    assert old == "not run: 1 edits are refused"
    assert new.startswith("passed: 2 requests and 9 tokens") and new in output
    shop.write("python/sglang/ours.py", "other = 1\n")
    (row,), _ = rows(shop, NEW, serve=True)
    assert row["engine_tests"] == "failed: served: request 0 differs"


def test_the_page_of_releases(shop):
    """Red when a record leaves out the reasons, or is written unasked."""
    shop.upstream({**FILES, "m.py": "before = 2\nx = f(1)\n"}, "1.2.2")
    page = shop.root / "docs/releases.md"
    rows(shop, "1.2.2")
    assert not page.exists()
    shop.run("compat", "--version", "1.2.2", "--record")
    text = page.read_text()
    assert "| 1.2.2 | 2 | 1 | 1 | 0 |" in text
    assert "[one] sglang/m.py" in text and "before the anchor changed" in text


def test_packages_that_a_release_asks_for(shop, tmp_path):
    """Red when a failed start of another release's engine leaves open whether it had
    its own dependencies."""
    package = tmp_path / "sglang"
    metadata = tmp_path / "sglang-9.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(
        "Requires-Dist: pytest>=1\nRequires-Dist: pytest==0.1\n"
        "Requires-Dist: not-there-at-all>2\n"
        "Requires-Dist: pytest==0.2; extra == 'more'\n"
    )
    found = unmet(package)
    assert len(found) == 2 and found[0].startswith("pytest==0.1, here is ")
    assert found[1] == "not-there-at-all>2, here is nothing"


def test_a_release_that_is_not_served_is_a_row(shop, monkeypatch):
    """Red when one release that cannot be had hides what the others say."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    found, output = rows(shop, "1.2.9", "1.2.3")
    assert "could not download sglang==1.2.9" in found[0]["not_fetched"]
    assert found[1]["applied"] == 2 and "| 1.2.9 | | | | not fetched" in output


def test_the_releases_around_the_pin(shop, monkeypatch):
    """Red when 0.5.10 sorts below 0.5.9, or a newer release is not looked at."""
    assert sorted(["0.5.10", "0.5.9", "0.5.9.post1"], key=order) == [
        "0.5.9",
        "0.5.9.post1",
        "0.5.10",
    ]
    pins = Pins.load(shop.project)
    versions = ["2.0", "1.10.0", "1.2.4", "1.2.3.post1", "1.2.3", "1.2.2", "1.1", "1.0"]
    assert around(pins, versions) == [
        *["1.1", "1.2.2", "1.2.3", "1.2.4", "1.10.0", "2.0"],
    ]
    monkeypatch.setattr(compat_module, "served", lambda pins: [])
    assert [row["version"] for row in rows(shop)[0]] == ["1.2.3"]


def test_bump_moves_pin_hashes_and_lock(shop):
    """Red when a hash is not that of the new wheel, or the lock stays behind."""
    wheel = shop.upstream({**FILES, "m.py": "before = 2\nx = f(1)\n"}, NEW)
    shop.write("docs/page.md", "For SGLang 1.2.3.\n")
    code, output = shop.run("bump", "--version", NEW, "--accept")
    assert code == 0, output
    assert "    - before = 1\n    + before = 2" in output
    assert "1 places moved in SGLang 1.2.4" in output
    assert "docs/page.md:1 names 1.2.3" in output
    pins = tomllib.loads(shop.project.pins.read_text())
    assert pins["upstream"]["version"] == NEW and pins["local"]["number"] == 1
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert pins["sha256"] == {wheel.name: digest}
    code, output = shop.run("check")
    assert code == 0, output


def test_a_declined_bump_changes_nothing(shop, monkeypatch):
    """Red when the pin moves although nobody accepted what moved."""
    shop.upstream({**FILES, "m.py": "before = 2\nx = f(1)\n"}, NEW)
    before = shop.project.pins.read_bytes(), shop.project.lock.read_bytes()
    monkeypatch.setattr("builtins.input", lambda question: "n")
    code, output = shop.run("bump", "--version", NEW)
    assert code == 1 and "not accepted" in output
    assert before == (shop.project.pins.read_bytes(), shop.project.lock.read_bytes())


def test_a_bump_with_a_lost_anchor_is_refused(shop):
    """Red when the pin moves to a release on which an edit finds no place."""
    shop.upstream({**FILES, "n.py": "other = 1\n"}, NEW)
    before = shop.project.pins.read_bytes()
    code, output = shop.run("bump", "--version", NEW, "--accept")
    assert code == 1 and "[two] sglang/n.py" in output and "is missing" in output
    assert "build/releases/1.2.4/sglang" in output
    assert shop.project.pins.read_bytes() == before


def test_bumping_to_the_pin_itself_is_refused(shop):
    """Red when the fork's number goes back to 1 for the same release."""
    code, output = shop.run("bump", "--version", "1.2.3", "--accept")
    assert code == 1 and "is the pin already" in output
