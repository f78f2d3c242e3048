"""Run as a script beside a server: `watchdog.py SESSION`.

Waits until its standard input closes, which happens when the program that started the
server ends, however it ends, and then kills what is left of the server's session.
Standard library only; it must start before the server does anything.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_POLL_S = 0.1
_QUIET_POLLS = 5


def session_pids(session: int) -> list[int]:
    """Live processes of a session, from `/proc`."""
    pids = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getsid(int(name)) == session and not _is_zombie(name):
                    pids.append(int(name))
            except (OSError, IndexError):
                continue
    return pids


def _is_zombie(pid: str) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        # The state follows the parenthesised command name.
        return stat.read().rpartition(")")[2].split()[0] == "Z"


def kill_session(session: int) -> None:
    """SIGKILL until the session stays empty."""
    quiet = 0
    while quiet < _QUIET_POLLS:
        pids = session_pids(session)
        quiet = 0 if pids else quiet + 1
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(_POLL_S)


def main() -> None:
    """Never touches a session before standard input has closed."""
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    sys.stdin.buffer.read()
    kill_session(int(sys.argv[1]))


if __name__ == "__main__":
    main()
