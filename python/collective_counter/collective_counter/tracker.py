"""Attributes each collective to a scope, and counts it once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from collective_counter.table import KINDS, SCOPES, RankTable

_OTHER = SCOPES.index("other")


def rows_of_call(input_shape: tuple[int, ...], head_width: int) -> int:
    """Rows that one vocabulary gather carries.

    A dense gather sends the head's output, `[rows, head_width]`. Anything narrower
    is a packed payload, word-major `[words, rows_padded]`, whose rows are columns.
    `head_width` is the width of this rank's head output, padding included.
    """
    if len(input_shape) < 2:
        return 0
    dense = input_shape[-1] == head_width
    return input_shape[0] if dense else input_shape[-1]


class Tracker:
    """Scope and nesting state of one process. `rank` is asked at the first event.

    Collectives before the head runs in a `LogitsProcessor` (gathers of hidden
    states) are not vocabulary collectives and count as `other`. A collective that
    passes through several hooked levels counts at the outermost.
    """

    def __init__(self, folder: Path, rank: Callable[[], int]) -> None:
        self._folder = folder
        self._rank = rank
        self._table: RankTable | None = None
        self._local = threading.local()

    @contextmanager
    def logits(self, scope: str) -> Iterator[None]:
        """Around one forward of a logits processor."""
        outer = self._scope
        self._local.scope = (SCOPES.index(scope), None)
        try:
            yield
        finally:
            self._local.scope = outer

    def head(self, rows: int, width: int) -> None:
        """The head produced `[rows, width]` logits on this rank."""
        scope, _ = self._scope
        self._local.scope = (scope, width)
        if rows > 0 and scope != _OTHER:
            self._open().add_head(scope, rows)

    @contextmanager
    def collective(self, kind: str) -> Iterator[Callable[[int, Any], None] | None]:
        """Around one collective. Yields `record(nbytes, input_shape)`, to be called
        when it has returned; None inside another collective."""
        if getattr(self._local, "nested", False):
            yield None
            return
        self._local.nested = True
        try:
            yield lambda nbytes, shape: self._record(kind, nbytes, shape)
        finally:
            self._local.nested = False

    def _record(self, kind: str, nbytes: int, shape: tuple[int, ...] | None) -> None:
        scope, width = self._scope
        rows = 0
        if width is None:
            scope = _OTHER
        elif shape is not None and scope != _OTHER:
            rows = rows_of_call(shape, width)
        self._open().add_collective(scope, KINDS.index(kind), nbytes, rows)

    @property
    def _scope(self) -> tuple[int, int | None]:
        return getattr(self._local, "scope", (_OTHER, None))

    def _open(self) -> RankTable:
        if self._table is None:
            self._table = RankTable(self._folder, self._rank(), os.getpid())
        return self._table
