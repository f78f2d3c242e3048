"""Bad input of `launch_server`: it says why, and ends by itself.

A TP size that does not divide the heads is no error here: SGLang's CPU engine pads the
heads (`adjust_config_with_unaligned_cpu_tp`) and serves.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine_arms.arms import ARMS, Arm, server_command
from scripts.demo.settings import FLAG
from scripts.serving import ServerCommand, cpu_engine
from scripts.serving.processes import Session, session_members

# A server that gets as far as its port has loaded the model before.
TIMEOUT_S = 120.0
# Its helper processes see the end of their parent a moment later.
GRACE_S = 10.0


def run_to_the_end(command: ServerCommand) -> tuple[int, str]:
    """Exit code and log of a server that ends by itself, with all its processes."""
    command.log_path.unlink(missing_ok=True)
    session = Session(command.argv(), command.environment(), command.log_path)
    try:
        code = session.leader.wait(timeout=TIMEOUT_S)
        deadline = time.monotonic() + GRACE_S
        while session_members(session.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [process.name() for process in session_members(session.pid)]
        assert left == []
    finally:
        session.stop()
    return code, command.log_path.read_text()


def error_lines(log: str) -> list[str]:
    """Lines that say what went wrong: of the argument parser, of the last exception,
    or logged as an error."""
    marks = ("error: ", "Error: ", "ERROR: ")
    return [line for line in log.splitlines() if any(mark in line for mark in marks)]


@contextmanager
def taken_port() -> Iterator[int]:
    """A port that something listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_wrong_flag_value(tmp_path: Path) -> None:
    """Red when any word is taken for the flag, or the refusal does not list them."""
    arm = Arm("wrong", cpu_engine.FORK, (FLAG, "maybe"))
    code, log = run_to_the_end(server_command(arm, tmp_path))
    assert code == 2
    (line,) = error_lines(log)
    assert f"argument {FLAG}: invalid choice: 'maybe'" in line
    assert all(choice in line for choice in ("off", "auto", "on"))


def test_missing_model(tmp_path: Path) -> None:
    """Red when a missing model is not named, or leaves something running."""
    missing = tmp_path / "no-such-model"
    code, log = run_to_the_end(server_command(ARMS["packed"], tmp_path, model=missing))
    assert code != 0
    assert str(missing) in error_lines(log)[-1]


def test_port_in_use(tmp_path: Path) -> None:
    """Red when a server whose port is taken goes on, or leaves its ranks running."""
    with taken_port() as port:
        code, log = run_to_the_end(server_command(ARMS["packed"], tmp_path, port=port))
    assert code != 0
    (line,) = [
        line for line in error_lines(log) if str(port) in line and "ERROR" in line
    ]
    assert "address already in use" in line
