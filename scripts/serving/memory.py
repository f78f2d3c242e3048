"""Memory of a server: of its processes, or whatever else can be read as bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

import psutil

from scripts.serving.processes import session_members

_MIB = 1 << 20


def session_pss_bytes(leader: int) -> int:
    """Proportional set size of all processes of a session: shared pages count once."""
    total = 0
    for process in session_members(leader):
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


class MemorySampler:
    """Samples bytes from a thread; `peak_mib` is the largest sample."""

    def __init__(self, read: Callable[[], int], interval_s: float) -> None:
        self._read = read
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._peak = 0

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def peak_mib(self) -> float:
        """Largest sample so far, in MiB."""
        return self._peak / _MIB

    def sample(self) -> float:
        """Take one sample now; returns it in MiB."""
        now = self._read()
        self._peak = max(self._peak, now)
        return now / _MIB

    def _run(self) -> None:
        while True:
            self.sample()
            if self._stop.wait(self._interval_s):
                return


class PssSampler(MemorySampler):
    """Samples the memory of a session's processes."""

    def __init__(self, leader: int, interval_s: float = 2.0) -> None:
        super().__init__(lambda: session_pss_bytes(leader), interval_s)
