"""The counters of one rank, as int64 values in a memory-mapped file."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SCOPES = ("draft_logits", "target_logits", "other")
KINDS = (
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "gather",
    "scatter",
    "send",
    "recv",
    "object",
    "barrier",
)
MEASURES = ("calls", "output_bytes", "rows")
# Longer than one draft step takes on two cores.
SETTLE_TIMEOUT_S = 60.0
SETTLE_S = 1.0

_MAGIC = 0x76706472616674  # "vpdraft"
_HEADER = 2  # magic, pid
_STEPS = 2 * len(SCOPES)  # head calls, then head rows, per scope
_CELLS = len(SCOPES) * len(KINDS) * len(MEASURES)
_LENGTH = _HEADER + _STEPS + _CELLS
_FILE = "rank{}.bin"


@dataclass(frozen=True)
class RankCounters:
    """A snapshot, or the difference of two.

    `head_calls`, `head_rows`: int64 `[scopes]`. `cells`: int64
    `[scopes, kinds, measures]`; bytes are those of the output on this rank, rows those
    of the call as `rows_of_call` defines them (0 outside the logits scopes).
    """

    rank: int
    pid: int
    head_calls: np.ndarray
    head_rows: np.ndarray
    cells: np.ndarray

    def get(self, scope: str, kind: str, measure: str = "calls") -> int:
        """One counter; KeyError-like ValueError for an unknown name."""
        index = SCOPES.index(scope), KINDS.index(kind), MEASURES.index(measure)
        return int(self.cells[index])

    def calls(self, scope: str) -> dict[str, int]:
        """Calls per kind in one scope, kinds that never occurred left out."""
        column = self.cells[SCOPES.index(scope), :, 0]
        return {kind: int(n) for kind, n in zip(KINDS, column) if n}


class RankTable:
    """The live file of this process; every write is visible to readers at once."""

    def __init__(self, folder: Path, rank: int, pid: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / _FILE.format(rank)
        values = np.memmap(path, dtype=np.int64, mode="w+", shape=(_LENGTH,))
        values[1] = pid
        values[0] = _MAGIC
        self._values = values
        self.head_calls, self.head_rows, self.cells = _views(values)

    def add_head(self, scope: int, rows: int) -> None:
        """One head call over `rows` rows."""
        self.head_calls[scope] += 1
        self.head_rows[scope] += rows

    def add_collective(self, scope: int, kind: int, nbytes: int, rows: int) -> None:
        """One collective with `nbytes` of output."""
        self.cells[scope, kind] += (1, nbytes, rows)


def _views(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    scopes, body = len(SCOPES), values[_HEADER:]
    cells = body[_STEPS:].reshape(scopes, len(KINDS), len(MEASURES))
    return body[:scopes], body[scopes:_STEPS], cells


def read_counters(folder: Path | str) -> list[RankCounters]:
    """Snapshots of all ranks, in rank order.

    Raises FileNotFoundError when no rank has written yet and ValueError for a file
    of another layout.
    """
    snapshots = []
    for rank in range(len(list(Path(folder).glob(_FILE.format("*"))))):
        path = Path(folder) / _FILE.format(rank)
        values = np.fromfile(path, dtype=np.int64)
        if len(values) != _LENGTH or values[0] != _MAGIC:
            raise ValueError(f"{path} is not a counter file of this version")
        snapshots.append(RankCounters(rank, int(values[1]), *_views(values)))
    if not snapshots:
        raise FileNotFoundError(f"no counter files in {folder}: did the plugin load?")
    return snapshots


def read_settled_counters(folder: Path | str) -> list[RankCounters]:
    """A snapshot taken when the logits scopes of all ranks have come to rest: the last
    answer leaves a server before its batch's last draft step ends.

    Raises TimeoutError when they do not come to rest: the server is still at work.
    """
    last = read_counters(folder)
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < deadline:
        time.sleep(SETTLE_S)
        now = read_counters(folder)
        if len(now) == len(last) and all(
            np.array_equal(n.cells[:2], o.cells[:2]) for n, o in zip(now, last)
        ):
            return now
        last = now
    raise TimeoutError(
        f"the draft counters in {folder} still move after {SETTLE_TIMEOUT_S:.0f} s; "
        "wait until the server is idle"
    )


def subtract(
    after: list[RankCounters], before: list[RankCounters]
) -> list[RankCounters]:
    """What happened between two snapshots of the same processes.

    Raises ValueError when ranks or processes differ (the server was restarted).
    """
    if [(c.rank, c.pid) for c in after] != [(c.rank, c.pid) for c in before]:
        raise ValueError("the counters before and after come from other processes")
    return [
        RankCounters(
            rank=new.rank,
            pid=new.pid,
            head_calls=new.head_calls - old.head_calls,
            head_rows=new.head_rows - old.head_rows,
            cells=new.cells - old.cells,
        )
        for new, old in zip(after, before)
    ]
