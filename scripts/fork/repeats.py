"""Proof that no file of ours repeats upstream code.

Two measures: runs of `RUN` normalised lines, and function bodies as syntax trees.
What a reviewer has allowed stands in `allowed_repeats.toml` with its hash.
"""

from __future__ import annotations

import ast
import re
import subprocess
import textwrap
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fork.project import ForkError, Project
from fork.syntax import canonical, digest

RUN = 5
MIN_STATEMENTS = 3
UPSTREAM_SUFFIXES = {
    *(".py", ".md", ".sh", ".yaml", ".yml", ".toml", ".txt", ".jinja", ".jinja2"),
    *(".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hip", ".hpp"),
}
NOT_CODE = {"LICENSE", "NOTICE", "lock.json"}

COMMENT = re.compile(r"(^|\s{2,})#.*$|^(//|/\*|\*/|<!--).*$")
BLANKS = re.compile(r"\s+")
LONE = re.compile(r"""^[\s()\[\]{},:;"'`]*$""")
IMPORT = re.compile(r"^(import\s+\S|from\s+\S+\s+import\b)")
WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Line:
    number: int
    text: str


@dataclass(frozen=True)
class Body:
    """A function's body: its lines, its shape, and the words it is made of."""

    path: str
    name: str
    line: int
    end: int
    kinds: tuple[type, ...]
    shape: str
    words: frozenset[str]


@dataclass(frozen=True)
class Repeat:
    """Something of ours that upstream has too."""

    path: str
    line: int
    end: int
    what: str
    upstream: str
    hash: str

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line}: {self.what} repeats upstream's "
            f"{self.upstream}; write it differently, or have it reviewed into "
            f'allowed_repeats.toml with hash = "{self.hash}"'
        )


def check(project: Project, package: Path) -> list[str]:
    """Repeats that nobody allowed, and allowances that nothing needs."""
    allowed = load_allowed(project)
    found = find_repeats(our_files(project.root), package)
    keys = {(repeat.path, repeat.hash) for repeat in found}
    problems = [str(r) for r in found if (r.path, r.hash) not in allowed]
    name = project.name(project.allowed_repeats)
    problems += [
        f"{name}: {path} no longer repeats what hash {key} allows; remove the entry"
        for path, key in allowed
        if (path, key) not in keys
    ]
    return problems


def load_allowed(project: Project) -> set[tuple[str, str]]:
    if not project.allowed_repeats.exists():
        return set()
    entries = tomllib.loads(project.allowed_repeats.read_text("utf-8"))
    allowed = set()
    for entry in entries.get("allowed", []):
        if set(entry) != {"path", "reason", "hash"} or not entry["reason"].strip():
            raise ForkError(
                f"{project.name(project.allowed_repeats)}: an entry needs path, "
                f"reason and hash, and nothing else: {entry}"
            )
        allowed.add((entry["path"], entry["hash"]))
    return allowed


def our_files(root: Path) -> dict[str, str]:
    """Text of every file that is tracked, or not yet tracked and not ignored."""
    files = {}
    for name in sorted(names_in(root)):
        path = root / name
        if path.is_file() and path.name not in NOT_CODE:
            data = path.read_bytes()
            if b"\0" not in data:
                files[name] = data.decode("utf-8", "replace")
    return files


def names_in(root: Path) -> set[str]:
    if (root / ".git").exists():
        command = ["git", "ls-files", "-coz", "--exclude-standard"]
        listing = subprocess.run(command, cwd=root, capture_output=True)
        if listing.returncode:
            raise ForkError(f"git ls-files failed in {root}: {listing.stderr.decode()}")
        return set(listing.stdout.decode().split("\0")) - {""}
    paths = (path.relative_to(root) for path in root.rglob("*"))
    return {
        path.as_posix()
        for path in paths
        if path.parts[0] not in ("build", "dist")
        and not any(part.startswith((".", "__pycache__")) for part in path.parts)
    }


def find_repeats(files: dict[str, str], package: Path) -> list[Repeat]:
    """Every run and function body in `files` that occurs in upstream's package."""
    lines = {path: normalised(text) for path, text in files.items()}
    windows = {
        tuple(line.text for line in ours[i : i + RUN])
        for ours in lines.values()
        for i in range(len(ours) - RUN + 1)
    }
    ours = [body for path, text in files.items() for body in bodies(path, text)]
    places: dict[tuple[str, ...], str] = {}
    shapes: dict[str, str] = {}
    known = {text for window in windows for text in window}
    by_word: dict[str, list[Body]] = {}
    for body in ours:
        by_word.setdefault(max(sorted(body.words), key=len), []).append(body)
    for path in sorted(package.rglob("*")):
        if path.suffix not in UPSTREAM_SUFFIXES or not path.is_file():
            continue
        text = path.read_text("utf-8", "replace")
        name = f"{package.name}/{path.relative_to(package).as_posix()}"
        for window, line in runs_in(text, known):
            if window in windows:
                places.setdefault(window, f"{name}:{line}")
        if path.suffix == ".py":
            words = set(WORD.findall(text))
            near = [b for w in words & by_word.keys() for b in by_word[w]]
            kinds = {body.kinds for body in near if body.words <= words}
            for body in bodies(name, text, kinds) if kinds else ():
                shapes.setdefault(body.shape, f"{name}:{body.line} {body.name}")
    runs = [r for path in files for r in run_repeats(path, lines[path], places)]
    found = list(runs)
    for body in ours:
        if body.shape in shapes and not any(covers(run, body) for run in runs):
            what, where = f"the body of {body.name}", shapes[body.shape]
            place = (body.path, body.line, body.end)
            found.append(Repeat(*place, what, where, body.shape))
    return found


def covers(run: Repeat, body: Body) -> bool:
    return run.path == body.path and run.line <= body.line and body.end <= run.end + 1


def normalised(text: str) -> list[Line]:
    """Lines that count: no blanks, imports, lone brackets or comments."""
    lines, in_import = [], False
    for number, raw in enumerate(text.split("\n"), 1):
        line = normal(raw)
        if in_import:
            in_import = ")" not in line
        elif IMPORT.match(line):
            in_import = "(" in line and ")" not in line
        elif not LONE.match(line):
            lines.append(Line(number, line))
    return lines


def normal(line: str) -> str:
    line = line.strip()
    if "#" in line or line.startswith(("/", "*/", "<")):
        line = COMMENT.sub("", line).strip()
    return BLANKS.sub(" ", line) if "  " in line or "\t" in line else line


def runs_in(text: str, known: set[str]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Windows of an upstream text whose lines all occur in our files."""
    lines = normalised(text)
    streak = 0
    for index, line in enumerate(lines):
        streak = streak + 1 if line.text in known else 0
        if streak >= RUN:
            window = lines[index - RUN + 1 : index + 1]
            yield tuple(part.text for part in window), window[0].number


def run_repeats(
    path: str, lines: list[Line], places: dict[tuple[str, ...], str]
) -> Iterator[Repeat]:
    """Overlapping windows of one file joined into the longest runs."""
    texts = [line.text for line in lines]
    starts = [
        index
        for index in range(len(texts) - RUN + 1)
        if tuple(texts[index : index + RUN]) in places
    ]
    while starts:
        first = last = starts.pop(0)
        while starts and starts[0] <= last + RUN:
            last = starts.pop(0)
        run = texts[first : last + RUN]
        yield Repeat(
            path,
            lines[first].number,
            lines[last + RUN - 1].number,
            f"a run of {len(run)} lines ({run[0][:60]} …)",
            places[tuple(run[:RUN])],
            digest("\n".join(run)),
        )


def bodies(
    path: str, text: str, kinds: set[tuple[type, ...]] | None = None
) -> Iterator[Body]:
    """Function bodies with at least `MIN_STATEMENTS` statements at any depth.

    With `kinds`, only bodies whose own statements are of one of these sequences of
    types: the costly part is done for few functions of a large file.
    """
    for offset, code in code_in(path, text):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # not ours to read
                tree = ast.parse(code)
        except SyntaxError:
            continue
        for node in functions(tree):
            body = node.body
            if ast.get_docstring(node, clean=False) is not None:
                body = body[1:]
            sequence = tuple(map(type, body))
            if kinds is not None and sequence not in kinds:
                continue
            inner = [n for stmt in body for n in ast.walk(stmt)]
            if sum(isinstance(n, ast.stmt) for n in inner) >= MIN_STATEMENTS:
                shape = digest(canonical(body))
                span = (body[0].lineno + offset, node.end_lineno + offset)
                yield Body(path, node.name, *span, sequence, shape, words_in(inner))


def functions(root: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function at any depth; expressions are not searched."""
    for child in ast.iter_child_nodes(root):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
        if not isinstance(child, ast.expr):
            yield from functions(child)


def words_in(nodes: list[ast.AST]) -> frozenset[str]:
    """Words of some code that any text with the same code has, too."""
    words = {"def"}
    for node in nodes:
        names = [getattr(node, key, None) for key in ("id", "attr", "arg", "name")]
        value = getattr(node, "value", None)
        if isinstance(value, str) and repr(value)[1:-1] == value:
            names += WORD.findall(value)
        words |= {name for name in names if isinstance(name, str)}
    return frozenset(words)


def code_in(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Python in a file, with the number of lines above it."""
    if path.endswith(".py"):
        yield 0, text
    elif path.startswith("python/edits/") and path.endswith(".toml"):
        try:
            entries = tomllib.loads(text).get("edit", [])
        except tomllib.TOMLDecodeError:
            return
        for entry in entries:
            insert = entry.get("insert", "")
            yield text[: text.find(insert)].count("\n"), textwrap.dedent(insert)
    elif path.endswith(".md"):
        for block in re.finditer(r"^```\w*\n(.*?)^```", text, re.M | re.S):
            yield text[: block.start(1)].count("\n"), textwrap.dedent(block[1])
