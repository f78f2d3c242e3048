"""Peak memory of a server's processes."""

from __future__ import annotations

import threading
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


class PssSampler:
    """Samples a session's memory from a thread; `peak_mib` is the largest sum."""

    def __init__(self, leader: int, interval_s: float = 2.0) -> None:
        self._leader = leader
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._peak = 0

    def __enter__(self) -> PssSampler:
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
        """Largest sum seen so far, in MiB."""
        return self._peak / _MIB

    def sample(self) -> None:
        """Take one sample now."""
        self._peak = max(self._peak, session_pss_bytes(self._leader))

    def _run(self) -> None:
        while True:
            self.sample()
            if self._stop.wait(self._interval_s):
                return
