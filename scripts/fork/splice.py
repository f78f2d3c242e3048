"""Turn a located edit into byte splices of the pristine source, and apply them."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass, field

from fork.edits import Edit
from fork.locate import anchored_calls
from fork.project import ForkError
from fork.source import Source, top_line
from fork.syntax import DEFINITIONS, Site


@dataclass(frozen=True)
class Splice:
    """Replace the bytes `[start, end)` of the pristine file with `text`.

    `order` decides between splices at one offset: what belongs to the end of
    the statement above comes first, deeper blocks before the ones around them.
    """

    start: int
    end: int
    text: bytes
    edit: Edit = field(compare=False)
    order: tuple[int, ...] = ()


def indented(insert: str, column: int) -> bytes:
    lines = textwrap.dedent(insert).split("\n")
    if lines and not lines[-1].strip():
        lines.pop()
    pad = " " * column
    return "".join(f"{pad}{x}\n" if x.strip() else "\n" for x in lines).encode()


def splices(source: Source, site: Site, edit: Edit) -> list[Splice]:
    """The splices of one edit. Raises ForkError where the place does not suit."""
    try:
        return OPERATIONS[edit.op](source, site, edit)
    except ForkError as error:
        line = site.node.lineno
        raise ForkError(f"{edit.place}, line {line}: op {edit.op}: {error}") from None


def above(source: Source, line: int, column: int, edit: Edit) -> list[Splice]:
    """Own lines before `line`, as part of what follows."""
    start = source.offset(line)
    return [Splice(start, start, indented(edit.insert, column), edit, (1, 0, 0))]


def below(
    source: Source, node: ast.AST, column: int, edit: Edit, rank: int = 2
) -> list[Splice]:
    """Own lines after `node`, as part of the block that ends there."""
    if not source.ends_line(node):
        raise ForkError("another statement follows on the same line")
    start = source.offset(node.end_lineno + 1)
    text = indented(edit.insert, column)
    if start == len(source.data) and not source.data.endswith(b"\n"):
        text = b"\n" + text
    return [Splice(start, start, text, edit, (0, -column, rank))]


def before(source: Source, site: Site, edit: Edit) -> list[Splice]:
    if site.is_elif:
        raise ForkError("the anchor is an elif arm; nothing can stand before it")
    if not source.starts_line(site.node):
        raise ForkError("the statement does not start its line")
    line = top_line(source, site.node)
    return above(source, line, site.node.col_offset, edit)


def after(source: Source, site: Site, edit: Edit) -> list[Splice]:
    return below(source, site.node, site.node.col_offset, edit)


def body_of(source: Source, site: Site) -> list[ast.stmt]:
    body = getattr(site.node, "body", None)
    if not body or not isinstance(body[0], ast.stmt):
        raise ForkError("the anchor has no body")
    if not source.starts_line(body[0]):
        raise ForkError("the body stands on the header's line")
    return body


def docstring_of(node: ast.stmt) -> ast.stmt | None:
    if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False):
        return node.body[0]
    return None


def body_first(source: Source, site: Site, edit: Edit) -> list[Splice]:
    body = body_of(source, site)
    column = body[0].col_offset
    docstring = docstring_of(site.node)
    if docstring is not None:
        return below(source, docstring, column, edit, rank=0)
    return above(source, top_line(source, body[0]), column, edit)


def body_last(source: Source, site: Site, edit: Edit) -> list[Splice]:
    body = body_of(source, site)
    return below(source, body[-1], body[0].col_offset, edit)


def elif_after(source: Source, site: Site, edit: Edit) -> list[Splice]:
    if not isinstance(site.node, ast.If):
        raise ForkError("the anchor is not an if or an elif arm")
    lines = [line.strip() for line in edit.insert.splitlines()]
    code = [line for line in lines if line and not line.startswith("#")]
    if not code or not code[0].startswith("elif "):
        raise ForkError("the first line to insert must be an elif")
    body = body_of(source, site)
    return below(source, body[-1], site.node.col_offset, edit, rank=1)


def appended(
    source: Source, edit: Edit, last: ast.AST, opening: int, closing: int
) -> list[Splice]:
    """Own lines after the last entry of a bracketed list, before its closing line.

    `opening` is the line of the opening bracket, `closing` the offset of the
    closing one. Adds the comma after `last` where it is missing.
    """
    line = source.data.count(b"\n", 0, closing) + 1
    if source.data[source.offset(line) : closing].strip() or last.lineno == opening:
        raise ForkError(
            "the brackets must open and close on lines of their own; "
            "use replace_argument for a call on one line"
        )
    start = source.offset(line)
    text = indented(edit.insert, source.indent(last.lineno))
    result = [Splice(start, start, text, edit, (0, 0, 0))]
    end = source.offset(last.end_lineno, last.end_col_offset)
    for position, character in source.code_after(end):
        if character == b"," or position >= closing:
            break
        end = position + 1  # a parenthesis around the last entry
    if character != b",":
        result.insert(0, Splice(end, end, b",", edit, (0, 0, 0)))
    return result


def anchored_call(site: Site, edit: Edit) -> ast.Call:
    found = anchored_calls(site.node, edit.anchor)
    if len(found) != 1:
        raise ForkError(
            f"{edit.anchor['calls']} is called {len(found)} times in the statement; "
            "add keyword to the anchor"
        )
    return found[0]


def keyword(source: Source, site: Site, edit: Edit) -> list[Splice]:
    call = anchored_call(site, edit)
    arguments = [*call.args, *call.keywords]
    if not arguments:
        raise ForkError("the call has no arguments to follow")
    last = max(arguments, key=lambda node: (node.end_lineno, node.end_col_offset))
    closing = source.offset(call.end_lineno, call.end_col_offset) - 1
    return appended(source, edit, last, call.func.end_lineno, closing)


def element(source: Source, site: Site, edit: Edit) -> list[Splice]:
    value = getattr(site.node, "value", None)
    if isinstance(value, ast.Call) and len(value.args) == 1:
        value = value.args[0]  # such as frozenset({...})
    entries = getattr(value, "elts", None) or getattr(value, "values", None)
    if not isinstance(value, (ast.Tuple, ast.List, ast.Set, ast.Dict)) or not entries:
        raise ForkError("the anchor assigns no tuple, list, set or dict with entries")
    closing = source.offset(value.end_lineno, value.end_col_offset) - 1
    if source.data[closing : closing + 1] not in (b")", b"]", b"}"):
        raise ForkError("the tuple has no parentheses")
    return appended(source, edit, entries[-1], value.lineno, closing)


def parameter(source: Source, site: Site, edit: Edit) -> list[Splice]:
    node = site.node
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise ForkError("the anchor is not a function")
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    plain = [*named, *filter(None, [arguments.vararg])]
    if arguments.kwarg is not None:
        line = arguments.kwarg.lineno
        if not source.line(line).lstrip().startswith(b"**"):
            raise ForkError("the parameters must stand on lines of their own")
        return above(source, line, source.indent(line), edit)
    defaults = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
    ends = [*plain, *defaults]
    if not ends:
        raise ForkError("the function has no parameters to follow")
    last = max(ends, key=lambda part: (part.end_lineno, part.end_col_offset))
    closing = 0
    end = source.offset(last.end_lineno, last.end_col_offset)
    for position, character in source.code_after(end):
        if character not in b"),/":
            break  # the arrow or the colon
        closing = position if character == b")" else closing
    return appended(source, edit, last, node.lineno, closing)


def replace_argument(source: Source, site: Site, edit: Edit) -> list[Splice]:
    call = anchored_call(site, edit)
    if isinstance(edit.argument, str):
        named = {word.arg: word.value for word in call.keywords}
        node = named.get(edit.argument)
    else:
        place = edit.argument
        node = call.args[place] if 0 <= place < len(call.args) else None
    if node is None:
        raise ForkError(f"the call has no argument {edit.argument!r}")
    text = edit.insert.strip()
    if "\n" in text:
        raise ForkError("the new argument must be one line")
    start = source.offset(node.lineno, node.col_offset)
    end = source.offset(node.end_lineno, node.end_col_offset)
    return [Splice(start, end, text.encode(), edit, (0, 0, 0))]


OPERATIONS = {
    "before": before,
    "after": after,
    "body_first": body_first,
    "body_last": body_last,
    "elif_after": elif_after,
    "keyword": keyword,
    "element": element,
    "parameter": parameter,
    "replace_argument": replace_argument,
}


def ordered(found: list[Splice]) -> list[Splice]:
    """Splices in the order in which their texts appear; stable for equal places.

    Raises ForkError when two of them replace the same bytes.
    """
    result: list[Splice] = []
    for splice in sorted(found, key=lambda s: (s.start, s.order)):
        if splice.text == b"," and splice in result:
            continue  # two edits of one call both need the comma
        if result and splice.start < result[-1].end:
            first, second = result[-1].edit, splice.edit
            raise ForkError(f"{second.place}: overlaps with edit [{first.name}]")
        result.append(splice)
    return result


def apply(data: bytes, found: list[Splice]) -> bytes:
    """`data` with the ordered splices done."""
    parts, position = [], 0
    for splice in found:
        parts += [data[position : splice.start], splice.text]
        position = splice.end
    return b"".join([*parts, data[position:]])
