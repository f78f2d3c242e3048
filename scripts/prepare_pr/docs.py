"""Documentation where upstream has it: a page, its entry, and the flag's row."""

from __future__ import annotations

import html
import re
from pathlib import Path

from fork.project import ForkError, Project
from prepare_pr.contents import Tree

FLAG = "--speculative-vocab-parallel-draft"
PAGE = "vocab_parallel_draft"
SOURCE = f"docs/upstream/{PAGE}.mdx"
FOLDER = "docs_new/docs/advanced_features"
ARGUMENTS = f"{FOLDER}/server_arguments.mdx"
NAVIGATION = "docs_new/docs.json"
NEIGHBOUR = "docs/advanced_features/adaptive_speculative_decoding"
ROW_BEFORE = "--speculative-eagle-topk"
ROW = re.compile(r"^[ \t]*<tr>\n.*?</tr>\n", re.M | re.S)
CELL = re.compile(r"(<td\b[^>]*>)(.*?)(</td>)", re.S)
# To a file beside ours or a heading of it; upstream has neither.
LINK = r"\[([^\]]*)\]\((?!\w+:|/)[^)]*\)"


def documentation(
    project: Project, tree: Tree
) -> tuple[dict[str, bytes], set[str], list[str]]:
    """Files by path, those of them that are new, and what had no place in this tree.

    Raises ForkError when upstream's pages are there but no longer look as expected.
    """
    page = f"{FOLDER}/{PAGE}.mdx"
    files = {page: page_text(project).encode()}
    missing = []
    for path, change in ((ARGUMENTS, with_rows), (NAVIGATION, with_entry)):
        place = tree.place(path)
        if place.is_file():
            files[path] = change(project, place.read_text("utf-8")).encode()
        else:
            missing.append(f"{path} is not in this tree: add the flag there by hand")
    return files, {page}, missing


def page_text(project: Project) -> str:
    """The page, with the first table of each named document in it."""

    def table(match: re.Match) -> str:
        return first_table(project.root / match[1])

    text = (project.root / SOURCE).read_text("utf-8")
    return re.sub(r"^@table (\S+)$", table, text, flags=re.M)


def first_table(path: Path) -> str:
    """The rows of a document's first table, without relative links: of `[text](a.md)`
    the text stays, a pair of parentheses around nothing but a link goes."""
    rows: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("|"):
            rows.append(line)
        elif rows:
            break
    if not rows:
        raise ForkError(f"{path}: no table there; {SOURCE} takes it from this file")
    text = re.sub(rf" \({LINK}\)", "", "\n".join(rows))
    return re.sub(LINK, r"\1", text)


def with_rows(project: Project, text: str) -> str:
    """The arguments' page with a row for every flag, laid out as their neighbour's."""
    rows = [m for m in ROW.finditer(text) if ROW_BEFORE in CELL.split(m[0])[2]]
    if len(rows) != 1 or len(CELL.findall(rows[0][0])) != 4:
        raise ForkError(
            f"{ARGUMENTS}: {len(rows)} rows of four cells for {ROW_BEFORE}, expected "
            "one; see how the table is made now and change scripts/prepare_pr/docs.py"
        )
    added = ""
    for flag in [flag_cells(project), *other_flags(project)]:
        cells = iter(flag)
        added += CELL.sub(lambda m: m[1] + next(cells) + m[3], rows[0][0])
    return text[: rows[0].end()] + added + text[rows[0].end() :]


def flag_cells(project: Project) -> list[str]:
    """Name, help, default and choices, as the page of the flag has them."""
    text = (project.root / SOURCE).read_text("utf-8")
    values = re.findall(r"^\| `(\w+)`( \(default\))? \| (.*?) \|$", text, re.M)
    default = next(name for name, is_default, _ in values if is_default)
    meanings = " ".join(f"{name}: {html.escape(what)}" for name, _, what in values)
    choices = ", ".join(f"<code>{name}</code>" for name, _, _ in values)
    about = "Draft tokens without gathering the vocabulary (tensor parallelism)."
    return [
        f"<code>{FLAG}</code>",
        f"{about} {meanings}",
        f"<code>{default}</code>",
        choices,
    ]


def other_flags(project: Project) -> list[list[str]]:
    """The rows of the page's table of flags, in HTML: name, help, default and values."""
    text = (project.root / SOURCE).read_text("utf-8")
    rows = re.findall(r"^\| (`--[\w-]+`) \| (.*?) \| (.*?) \| (.*?) \|$", text, re.M)
    return [
        [re.sub(r"`(.*?)`", r"<code>\1</code>", html.escape(cell)) for cell in row]
        for row in rows
    ]


def with_entry(project: Project, text: str) -> str:
    """The navigation with our page after the page on adaptive drafting."""
    lines = text.split("\n")
    found = [i for i, line in enumerate(lines) if line.strip(' ",') == NEIGHBOUR]
    if len(found) != 1:
        raise ForkError(
            f"{NAVIGATION}: {len(found)} entries {NEIGHBOUR}, expected one; change "
            "NEIGHBOUR in scripts/prepare_pr/docs.py"
        )
    line = lines[found[0]]
    ours = line.replace(NEIGHBOUR, NEIGHBOUR.rpartition("/")[0] + f"/{PAGE}")
    if line.rstrip().endswith(","):
        lines.insert(found[0] + 1, ours)
    else:  # the last of its list
        lines[found[0] : found[0] + 1] = [f"{line.rstrip()},", ours]
    return "\n".join(lines)
