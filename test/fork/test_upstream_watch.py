"""The upstream watch: one issue with what moved, and no failure for it."""

import json
import os
import subprocess

import pytest
import upstream_watch

FILES = {"m.py": "before = 1\nx = f(1)\n"}
MOVED = {"m.py": "before = 2\nx = f(1)\n"}
GH = """\
#!/bin/sh
echo "$*" >> "$GH_LOG"
case "$1 $2" in
  "issue list") echo "$GH_ISSUES" ;;
  *) cat > "$GH_LOG.body" ;;
esac
"""


@pytest.fixture
def shop(workshop, tmp_path, monkeypatch):
    workshop.upstream(FILES)
    workshop.edit("m.py", anchor={"assigns": "x"}, op="after", insert="z = 2")
    assert workshop.run("lock")[0] == 0
    gh = tmp_path / "bin/gh"
    gh.parent.mkdir()
    gh.write_text(GH)
    gh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gh.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GH_LOG", str(tmp_path / "gh.log"))
    monkeypatch.setenv("GH_ISSUES", "[]")
    monkeypatch.setattr(upstream_watch, "served", lambda pins: ["1.2.4", "1.2.3"])
    return workshop


def watch(shop, tmp_path, *arguments):
    """Exit code, the report, the commands given to gh, and the last issue's text."""
    code = upstream_watch.main(["--root", str(shop.root), *arguments])
    report = (shop.root / "build/upstream-watch.md").read_text()
    log, body = tmp_path / "gh.log", tmp_path / "gh.log.body"
    commands = log.read_text().splitlines() if log.exists() else []
    return code, report, commands, body.read_text() if body.exists() else ""


def test_a_moved_place_opens_an_issue_and_fails_nothing(shop, tmp_path):
    """Red when the report lacks what moved, or a release of SGLang fails our run."""
    shop.upstream(MOVED, "1.2.4")
    code, report, commands, body = watch(shop, tmp_path, "--publish")
    assert code == 0 and body == report
    assert commands[0].startswith("issue list") and len(commands) == 2
    assert commands[1].startswith("issue create --title Upstream watch")
    assert "| 1.2.4 | 1 | 0 | 1 |" in report and "| 1.2.3 | 1 | 1 | 0 |" in report
    assert "- before = 1\n    + before = 2" in report


def test_the_open_issue_is_updated(shop, tmp_path, monkeypatch):
    """Red when every run opens an issue, or one with another title is overwritten."""
    shop.upstream(MOVED, "1.2.4")
    other = {"number": 6, "title": f"{upstream_watch.TITLE}, again"}
    mine = {"number": 7, "title": upstream_watch.TITLE}
    monkeypatch.setenv("GH_ISSUES", json.dumps([other, mine]))
    code, report, commands, body = watch(shop, tmp_path, "--publish")
    assert code == 0 and body == report
    assert commands[1:] == ["issue edit 7 --body-file -"]


def test_nothing_moved_opens_no_issue(shop, tmp_path):
    """Red when a quiet week makes an issue."""
    shop.upstream(FILES, "1.2.4")
    code, _, commands, _ = watch(shop, tmp_path, "--publish")
    assert code == 0 and len(commands) == 1


def test_main_is_cloned_and_may_be_out_of_reach(shop, tmp_path, monkeypatch):
    """Red when main is not looked at, or a network failure hides the releases."""
    shop.upstream(FILES, "1.2.4")
    upstream = tmp_path / "upstream"
    package = upstream / "python/sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "m.py").write_text(MOVED["m.py"])
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", "-C", upstream, *command], check=True)
    monkeypatch.setattr(upstream_watch, "UPSTREAM", upstream.as_uri())
    code, report, _, _ = watch(shop, tmp_path, "--main")
    assert code == 0 and "| main | 1 | 0 | 1 |" in report
    monkeypatch.setattr(upstream_watch, "UPSTREAM", (tmp_path / "gone").as_uri())
    code, report, _, _ = watch(shop, tmp_path, "--main")
    assert code == 0 and "| main | | | | not fetched |" in report
    assert "| 1.2.4 | 1 | 1 | 0 |" in report
