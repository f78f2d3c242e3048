"""One server process: command line, start, readiness, end."""

from __future__ import annotations

import http.client
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from scripts.serving.ports import HOST, check_port_free
from scripts.serving.processes import Session

_POLL_S = 0.5
_ERROR_LINE = re.compile(r"^(?:[\w.]*(?:Error|Exception)\b|.*\berror: )")
# Failed connections of a server that ends anyway are not its reason.
_NOT_A_REASON = re.compile(r"^(?:Connection\w*|urllib3[\w.]*|requests[\w.]*)\b")
_TAIL_LINES = 15


class ServerError(RuntimeError):
    """The server did not come up, or died. The message holds the reason it gave."""


@dataclass(frozen=True)
class ServerCommand:
    """What to launch. `model_path` is a folder, or a repository id as text, which SGLang
    resolves. `python_path` takes the place of the inherited `PYTHONPATH`."""

    model_path: Path | str
    args: Sequence[str]
    port: int
    log_path: Path
    env: dict[str, str] = field(default_factory=dict)
    python_path: Sequence[Path] = ()

    def argv(self) -> list[str]:
        """The command line, for `subprocess` and for the record."""
        return [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(self.model_path),
            "--host",
            HOST,
            "--port",
            str(self.port),
            *self.args,
        ]

    def environment(self) -> dict[str, str]:
        """This process's environment with `env` and `python_path` on top."""
        env = os.environ | self.env
        if self.python_path:
            parts = [str(path.resolve()) for path in self.python_path]
            env["PYTHONPATH"] = os.pathsep.join(parts)
        return env


class Server:
    """Context manager around one running server; leaving it ends every process."""

    def __init__(self, command: ServerCommand, ready_timeout_s: float = 300.0) -> None:
        self.command = command
        self.ready_timeout_s = ready_timeout_s
        self.url = f"http://{HOST}:{command.port}"
        self.start_s = 0.0
        self._session: Session | None = None

    def __enter__(self) -> Server:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the server's session."""
        if self._session is None:
            raise ServerError("the server was not started")
        return self._session.pid

    def start(self) -> None:
        """Launch it; ValueError for a missing model folder or a port in use."""
        path = self.command.model_path
        if isinstance(path, Path) and not (path / "config.json").is_file():
            raise ValueError(
                f"--model-path {path}: no config.json there; give a model folder or "
                f"leave the option out to have one made"
            )
        check_port_free(self.command.port)
        self.command.log_path.unlink(missing_ok=True)
        command = self.command
        self._session = Session(command.argv(), command.environment(), command.log_path)

    def wait_ready(self, tick: Callable[[float], None] | None = None) -> None:
        """Return when the server answers `/health`; `tick(elapsed_s)` is called while
        waiting. Raises ServerError when it exits or takes too long."""
        start = time.monotonic()
        while not self.healthy():
            elapsed = time.monotonic() - start
            self.check_alive()
            if elapsed > self.ready_timeout_s:
                raise ServerError(
                    f"the server was not ready after {elapsed:.0f} s\n{self.log_tail()}"
                )
            if tick is not None:
                tick(elapsed)
            time.sleep(_POLL_S)
        self.start_s = time.monotonic() - start

    def healthy(self) -> bool:
        """Whether `/health` answers 200 now."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return response.status == 200
        except (OSError, http.client.HTTPException):
            return False

    def check_alive(self) -> None:
        """Raise ServerError with the server's own reason when it has exited."""
        code = None if self._session is None else self._session.leader.poll()
        if code is not None:
            raise ServerError(
                f"the server {_ending(code)}: "
                f"{self.log_reason()}\nlog: {self.command.log_path}"
            )

    def log_text(self) -> str:
        """Everything that the server has printed."""
        try:
            return self.command.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def log_reason(self) -> str:
        """The first error line of the log, else its last lines."""
        for line in self.log_text().splitlines():
            if _ERROR_LINE.match(line) and not _NOT_A_REASON.match(line):
                return line.strip()
        return "\n" + self.log_tail()

    def log_tail(self) -> str:
        """The last lines of the log."""
        return "\n".join(self.log_text().splitlines()[-_TAIL_LINES:])

    def stop(self) -> None:
        """End every process of the server; does nothing when it was not started."""
        if self._session is not None:
            self._session.stop()
            self._session = None


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal, which has none
        name = f"signal {-code}"
    return f"was killed by {name}"
