"""Processes that end with the program that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from scripts.serving import watchdog

_POLL_S = 0.1


class Session:
    """A process in a session of its own, and a watchdog that kills the session when
    this program ends without having stopped it."""

    def __init__(
        self, command: Sequence[str], env: dict[str, str], log_path: Path
    ) -> None:
        """Start `command`, its output appended to `log_path`."""
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with interrupts_deferred(), log_path.open("ab") as log:
            self.leader = subprocess.Popen(
                list(command),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            # -S -E: no site packages and no PYTHONPATH, so that it starts at once.
            self._watchdog = subprocess.Popen(
                [sys.executable, "-S", "-E", watchdog.__file__, str(self.leader.pid)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the leader, which is the id of the session."""
        return self.leader.pid

    def stop(self, grace_s: float = 5.0) -> None:
        """End the whole session: SIGTERM, then SIGKILL; returns when nothing is left.

        Ctrl-C takes effect after that. Raises RuntimeError when a process survives.
        """
        with interrupts_deferred():
            for sig, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 30.0)):
                if _signal_and_wait(self.leader, sig, wait_s):
                    break
            else:
                left = [member.pid for member in session_members(self.pid)]
                raise RuntimeError(f"processes {left} of the server did not end")
            self._watchdog.stdin.close()
            self._watchdog.wait()


def session_members(leader: int) -> list[psutil.Process]:
    """Every live process of the session that `leader` started, orphans included."""
    members = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == leader:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return members


def _signal_and_wait(process: subprocess.Popen, sig: int, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    sent: set[int] = set()
    while members := session_members(process.pid):
        for member in members:
            # SIGTERM once each; SIGKILL also for those that were forked meanwhile.
            if member.pid not in sent:
                sent.add(member.pid)
                _send(member, sig)
        process.poll()
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    process.wait()
    return True


def _send(process: psutil.Process, sig: int) -> None:
    try:
        process.send_signal(sig)
    except psutil.NoSuchProcess:
        pass


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """SIGINT and SIGTERM inside the block take effect when it ends (main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    old = {s: signal.signal(s, lambda sig, _: pending.append(sig)) for s in signals}
    try:
        yield
    finally:
        for sig, handler in old.items():
            signal.signal(sig, handler)
        for sig in pending[:1]:
            signal.raise_signal(sig)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that context
    managers stop what they started. SIGINT too: a shell has it ignored in what it
    starts in the background."""

    def interrupt(_signum: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old = {sig: signal.signal(sig, interrupt) for sig in signals}
    try:
        yield
    finally:
        for sig, handler in old.items():
            signal.signal(sig, handler)
