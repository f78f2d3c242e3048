"""Look at SGLang's newest releases, and keep one issue with what moved.

``python scripts/upstream_watch.py`` writes ``build/upstream-watch.md`` and exits with 0
whatever it finds. ``--main`` also looks at the main branch, if it can be reached.
``--publish`` opens the issue or updates the open one through GitHub's ``gh``; where every
edit lands, no issue is opened. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from fork.compat import around, order, row_of, served, table  # noqa: E402
from fork.pins import Pins  # noqa: E402
from fork.pristine import package_in, pristine_package, release_package  # noqa: E402
from fork.project import ForkError, Project  # noqa: E402

UPSTREAM = "https://github.com/sgl-project/sglang"
TITLE = "Upstream watch: what moved in SGLang"
MAIN = "main"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument(
        "--main", action="store_true", help="look at upstream's main too"
    )
    parser.add_argument(
        "--publish", action="store_true", help="open or update the issue"
    )
    options = parser.parse_args(arguments)
    project = Project(options.root)
    try:
        rows = look(project, with_main=options.main)
    except ForkError as error:
        print(f"upstream_watch: {error}", file=sys.stderr)
        return 1
    text = report(project, rows)
    out = project.build / "upstream-watch.md"
    out.write_text(text, "utf-8")
    print(f"{text}\n{out}")
    if options.publish:
        publish(text, moved=any(not lands(row) for row in rows))
    return 0


def look(project: Project, with_main: bool) -> list[dict]:
    """A row (see fork/compat.py) a newer release and, if wanted, one of main."""
    pins = Pins.load(project)
    _, reference = pristine_package(project, pins)
    versions = [
        v for v in around(pins, served(pins)) if order(v) >= order(pins.version)
    ]
    rows = []
    for version in [*versions, *([MAIN] if with_main else [])]:
        try:
            package = (
                main_branch(project)
                if version == MAIN
                else release_package(project, pins, version)
            )
            rows.append(row_of(project, version, package, reference))
        except ForkError as error:
            rows.append({"version": version, "not_fetched": str(error)})
    return rows


def main_branch(project: Project) -> Path:
    """A fresh shallow clone of upstream's main branch."""
    folder = project.build / "releases" / MAIN
    shutil.rmtree(folder, ignore_errors=True)
    command = ["git", "clone", "--quiet", "--depth", "1", UPSTREAM, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ForkError(f"git could not clone {UPSTREAM}: {done.stderr.strip()}")
    return package_in(folder)


def lands(row: dict) -> bool:
    """Whether nothing of a release that could be fetched needs a person."""
    return "not_fetched" in row or not (row["refused"] or row["other_problems"])


def report(project: Project, rows: list[dict]) -> str:
    """The issue's text: the table, and each place that moved, old and new."""
    pin = Pins.load(project).version
    lines = [f"The edits are written for SGLang {pin}.", "", table(rows), ""]
    for row in rows:
        reasons = [r for entry in row.get("refused", []) for r in entry["reasons"]]
        if reasons := reasons + row.get("other_problems", []):
            text = "\n".join(reasons)
            lines += [f"### {row['version']}", "", "```", text, "```", ""]
    lines.append("`make bump VERSION=...` moves the pin once these are reviewed.")
    return "\n".join(lines) + "\n"


def publish(text: str, moved: bool) -> None:
    """Update the open issue; open one only where something moved."""
    found = gh("issue", "list", "--state", "open", "--search", f'in:title "{TITLE}"')
    number = next((i["number"] for i in found if i["title"] == TITLE), None)
    if number is not None:
        gh("issue", "edit", str(number), "--body-file", "-", text=text)
    elif moved:
        gh("issue", "create", "--title", TITLE, "--body-file", "-", text=text)


def gh(*arguments: str, text: str = "") -> list[dict]:
    """One command of GitHub's CLI; what `issue list` found."""
    listing = arguments[:2] == ("issue", "list")
    command = ["gh", *arguments, *(["--json", "number,title"] if listing else [])]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"upstream_watch: {' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout) if listing else []


if __name__ == "__main__":
    sys.exit(main())
