"""The upstream diff: a git patch made from the splices themselves.

A line-matching algorithm could show a pure insertion as a replacement; built
from the splices, the patch has a removed line only where an edit removes one.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from fork.edits import Edit
from fork.plan import Change, Plan
from fork.splice import Splice

PREFIX = "python/sglang"
CONTEXT = 3


@dataclass(frozen=True)
class Replaced:
    """A line that the diff removes, and the edits that do so."""

    file: str
    line: int
    text: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Piece:
    """Pristine lines `[start, stop)` (from 0) become `lines`."""

    start: int
    stop: int
    lines: list[bytes]
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Diff:
    text: bytes
    added: int
    removed: list[Replaced]


def make_diff(plan: Plan, beside: Mapping[str, bytes] | None = None) -> Diff:
    """The patch that turns upstream's files into the plan's, in path order.

    `beside` are new files outside the package, by path in a checkout; they follow.
    """
    parts: list[bytes] = []
    added, removed = 0, []
    for file in sorted(plan.changes.keys() | plan.new_files.keys()):
        path = f"{PREFIX}/{file}"
        if file in plan.new_files:
            data = plan.new_files[file]
            parts.append(new_file(path, data))
            added += len(lines_of(data))
            continue
        change = plan.changes[file]
        if change.before == change.after:
            continue
        old = lines_of(change.before)
        pieces = pieces_of(change, old)
        parts.append(changed_file(path, change, old, pieces))
        added += sum(len(piece.lines) for piece in pieces)
        removed += [
            Replaced(file, line + 1, old[line].decode().rstrip("\n"), piece.edits)
            for piece in pieces
            for line in range(piece.start, piece.stop)
        ]
    for path, data in sorted((beside or {}).items()):
        parts.append(new_file(path, data))
        added += len(lines_of(data))
    return Diff(b"".join(parts), added, removed)


def lines_of(data: bytes) -> list[bytes]:
    """Lines with their ends; only `\\n` ends one."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    return [*lines[:-1], lines[-1][:-1]] if lines[-1] != b"\n" else lines[:-1]


def pieces_of(change: Change, old: list[bytes]) -> list[Piece]:
    """Splices as whole-line pieces; splices that touch one line are one piece."""
    starts = list(itertools.accumulate(map(len, old), initial=0))
    groups: list[tuple[int, int, list[Splice]]] = []
    for splice in change.splices:
        start, stop = span(splice, starts, change.before)
        if groups and start < groups[-1][1]:
            first, last, group = groups[-1]
            groups[-1] = (first, max(last, stop), [*group, splice])
        else:
            groups.append((start, stop, [splice]))
    pieces = []
    for start, stop, group in groups:
        text, position = b"", starts[start]
        for splice in group:
            text += change.before[position : splice.start] + splice.text
            position = splice.end
        text += change.before[position : starts[stop]]
        edits = tuple(dict.fromkeys(splice.edit for splice in group))
        pieces.append(Piece(start, stop, lines_of(text), edits))
    return pieces


def span(splice: Splice, starts: list[int], data: bytes) -> tuple[int, int]:
    """The lines that a splice replaces; an empty range for inserted lines."""
    line = bisect.bisect_right(starts, splice.start) - 1
    at_start = splice.start == splice.end == starts[line]
    if at_start and (splice.start < len(data) or data.endswith(b"\n")):
        return line, line
    line = min(line, len(starts) - 2)  # a last line that gains its line end
    return line, max(bisect.bisect_left(starts, splice.end), line + 1)


def changed_file(
    path: str, change: Change, old: list[bytes], pieces: list[Piece]
) -> bytes:
    head = (
        f"diff --git a/{path} b/{path}\n"
        f"index {blob(change.before)}..{blob(change.after)} 100644\n"
        f"--- a/{path}\n+++ b/{path}\n"
    )
    return head.encode() + b"".join(hunks(old, pieces))


def hunks(old: list[bytes], pieces: list[Piece]) -> list[bytes]:
    groups: list[list[Piece]] = []
    for piece in pieces:
        if groups and piece.start - groups[-1][-1].stop <= 2 * CONTEXT:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    result, shift = [], 0
    for group in groups:
        start = max(group[0].start - CONTEXT, 0)
        stop = min(group[-1].stop + CONTEXT, len(old))
        body, position = [], start
        for piece in group:
            body += [b" " + line for line in old[position : piece.start]]
            body += [b"-" + line for line in old[piece.start : piece.stop]]
            body += [b"+" + line for line in piece.lines]
            position = piece.stop
        body += [b" " + line for line in old[position:stop]]
        gain = sum(len(p.lines) - (p.stop - p.start) for p in group)
        length = stop - start
        first = f"-{start + 1},{length}"
        second = f"+{start + shift + 1},{length + gain}"
        result.append(f"@@ {first} {second} @@\n".encode())
        result += [ended(line) for line in body]
        shift += gain
    return result


def new_file(path: str, data: bytes) -> bytes:
    head = (
        f"diff --git a/{path} b/{path}\nnew file mode 100644\n"
        f"index {'0' * 40}..{blob(data)}\n"
    )
    lines = lines_of(data)
    if lines:
        head += f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n"
    return head.encode() + b"".join(ended(b"+" + line) for line in lines)


def ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def blob(data: bytes) -> str:
    """The object id that git gives these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def summary(diff: Diff) -> str:
    """Counts, and each removed line with the edit that replaces it and why."""
    lines = [f"{diff.added} lines added, {len(diff.removed)} replaced"]
    for line in diff.removed:
        lines.append(f"  {PREFIX}/{line.file}:{line.line}: {line.text.strip()}")
        for edit in line.edits:
            lines.append(f"    [{edit.name}] {edit.op}: {' '.join(edit.why.split())}")
    return "\n".join(lines)
