"""Pristine bytes as lines, offsets and the characters of code between them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fork.project import ForkError


class Source:
    """Pristine bytes with their lines, and offsets for `ast` positions."""

    def __init__(self, data: bytes) -> None:
        if b"\r" in data or b"\f" in data:
            raise ForkError("carriage returns or form feeds; line numbers are unsure")
        self.data = data
        self.lines = data.split(b"\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)

    def offset(self, lineno: int, column: int = 0) -> int:
        """Byte offset of a 1-based line and a byte column."""
        return min(self.starts[lineno - 1] + column, len(self.data))

    def line(self, lineno: int) -> bytes:
        return self.lines[lineno - 1]

    def indent(self, lineno: int) -> int:
        line = self.line(lineno)
        return len(line) - len(line.lstrip(b" "))

    def starts_line(self, node: ast.AST) -> bool:
        return self.indent(node.lineno) == node.col_offset

    def ends_line(self, node: ast.AST) -> bool:
        rest = self.line(node.end_lineno)[node.end_col_offset :].strip()
        return not rest or rest.startswith(b"#")

    def code_after(self, end: int) -> Iterator[tuple[int, bytes]]:
        """Offset and character of what follows, without blanks and comments."""
        position = end
        while position < len(self.data):
            character = self.data[position : position + 1]
            if character == b"#":
                position = self.data.find(b"\n", position)
                if position < 0:
                    return
            elif not character.isspace():
                yield position, character
            position += 1


def top_line(source: Source, node: ast.stmt) -> int:
    """First line of a statement with its decorators and attached comments."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    line = first
    while line > 1:
        comment = source.line(line - 1).lstrip().startswith(b"#")
        if not comment or source.indent(line - 1) != node.col_offset:
            return line
        line -= 1
    return first  # the comment that opens a file belongs to the file
