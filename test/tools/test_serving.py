"""Processes, ports and requests of the serving helpers."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.serving import (
    PssSampler,
    RequestFailed,
    Server,
    ServerCommand,
    ServerError,
    check_port_free,
    complete,
    complete_all,
    cpu_engine,
    free_port,
)
from scripts.serving import processes
from scripts.serving.processes import Session, session_members

# A parent with a child that ignores SIGTERM and a grandchild that it orphans.
TREE = """
import os, signal, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", '''
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
time.sleep(600)
'''])
time.sleep(600)
"""


def wait_until(condition, timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def start_tree(log: Path) -> Session:
    session = Session([sys.executable, "-c", TREE], dict(os.environ), log)
    assert wait_until(lambda: "up" in log.read_text())
    return session


def test_stop_ends_the_whole_tree(tmp_path: Path) -> None:
    """Red when a process that ignores SIGTERM, or an orphan, survives."""
    session = start_tree(tmp_path / "log")
    assert len(session_members(session.pid)) == 3
    session.stop(grace_s=0.5)
    assert session_members(session.pid) == []


def test_stop_finds_orphans_of_a_dead_leader(tmp_path: Path) -> None:
    """Red when only descendants of the leader are looked for."""
    session = start_tree(tmp_path / "log")
    session.leader.kill()
    session.leader.wait()
    assert len(session_members(session.pid)) == 2
    session.stop(grace_s=0.5)
    assert session_members(session.pid) == []


def test_session_ends_with_a_killed_starter(tmp_path: Path) -> None:
    """Red when a killed demo leaves its server, or a part of it, behind."""
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from scripts.serving.processes import Session\n"
        "s = Session(sys.argv[2:], dict(os.environ), Path(sys.argv[1]))\n"
        "print(s.pid, flush=True); time.sleep(600)"
    )
    log = tmp_path / "log"
    tree = [sys.executable, "-c", TREE]
    starter = subprocess.Popen(
        [sys.executable, "-c", code, str(log), *tree],
        cwd=cpu_engine.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    session = int(starter.stdout.readline())
    assert wait_until(lambda: "up" in log.read_text())
    assert len(session_members(session)) == 3
    starter.kill()
    starter.wait()
    assert wait_until(lambda: session_members(session) == [])


def test_port_in_use() -> None:
    """Red when a taken port passes, or a free one does not."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"--port {port}"):
            check_port_free(port)
    check_port_free(free_port())


def test_missing_model_starts_nothing(tmp_path: Path) -> None:
    """Red when a missing model path reaches SGLang."""
    log = tmp_path / "log"
    command = ServerCommand(tmp_path / "none", [], free_port(), log)
    with pytest.raises(ValueError, match="--model-path"):
        with Server(command):
            pass
    assert not log.exists()


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("x\nlaunch_server.py: error: argument --flag: bad\n", "argument --flag: bad"),
        ("Traceback\n  File\nAssertionError: 8 % 3\nRuntimeError: later\n", "8 % 3"),
        ("ConnectionRefusedError: [Errno 111]\nValueError: the cause\n", "the cause"),
        ("one\ntwo\n", "two"),
    ],
)
def test_log_reason(log: str, reason: str, tmp_path: Path) -> None:
    """Red when a dead server's reason is a follow-up error, or nothing."""
    path = tmp_path / "log"
    path.write_text(log)
    assert reason in Server(ServerCommand(tmp_path, [], 1, path)).log_reason()


@pytest.mark.parametrize(
    "code, ending",
    [
        (-9, "was killed by SIGKILL: "),
        (-40, "was killed by signal 40: "),
        (3, "exited with code 3: "),
    ],
)
def test_a_dead_server_says_how_it_ended(tmp_path: Path, code, ending) -> None:
    """Red when a signal that has a name is shown as a number, one without a name hides
    the server's end, or the log's last lines are left out."""
    log = tmp_path / "log"
    log.write_text("loading\n")
    server = Server(ServerCommand(tmp_path, [], 1, log))
    server._session = SimpleNamespace(leader=SimpleNamespace(poll=lambda: code))
    with pytest.raises(ServerError, match=ending) as raised:
        server.check_alive()
    assert "loading" in str(raised.value)


def test_pss_of_a_session(tmp_path: Path) -> None:
    """Red when the memory of child processes is left out."""
    hold = (
        "import time; b = bytearray(64 << 20); print('up', flush=True); time.sleep(600)"
    )
    code = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {hold!r}]); time.sleep(600)"
    )
    log = tmp_path / "log"
    session = Session([sys.executable, "-c", code], dict(os.environ), log)
    try:
        assert wait_until(lambda: "up" in log.read_text())
        with PssSampler(session.pid, interval_s=0.05) as sampler:
            assert wait_until(lambda: sampler.peak_mib > 64)
    finally:
        session.stop(grace_s=1)


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers by prompt: its first id is the status, its length the output's length."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ids = body["input_ids"]
        answer = {
            "output_ids": ids,
            "meta_info": {"finish_reason": "length", "spec_verify_ct": 2},
        }
        self.send_response(ids[0])
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def http_server() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_requests_keep_order_and_record_failures() -> None:
    """Red when answers are paired with the wrong prompts, or when a failed or short
    answer counts as a completion."""
    prompts = [[200, 1, 2], [500, 1, 2], [200, 3, 4], [200, 5]]
    with http_server() as url:
        answers = complete_all(url, prompts, max_new_tokens=3, concurrency=2)
    assert [a.output_ids for a in answers] == [prompts[0], [], prompts[2], []]
    assert answers[0].verify_rounds == 2 and answers[0].error is None
    assert "HTTP 500" in answers[1].error
    assert "2 of 3" in answers[3].error


def test_nobody_listens() -> None:
    """Red when a refused connection is an unexpected exception."""
    with pytest.raises(RequestFailed, match="refused"):
        complete(f"http://127.0.0.1:{free_port()}", [1], 1)


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    """Red when Ctrl-C is lost, or cuts a stop short."""
    done = []
    with pytest.raises(KeyboardInterrupt), processes.interruptible():
        with processes.interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            done.append("stopped")
    assert done == ["stopped"]
