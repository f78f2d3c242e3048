"""The image's scripts without a Docker engine, and that its files agree with each other."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from scripts.serving import free_port
from scripts.serving.cpu_engine import ROOT

DOCKER = ROOT / "docker"
RECORDER = """#!/bin/sh
echo "$*" >> "$RECORD"
case "$*" in *"$FAIL_ON"*) exit 7 ;; esac
case "$*" in *"fork wheel"*) while [ "$1" != --out ]; do shift; done
    touch "$2/sglang-1-py3-none-any.whl" ;; esac
"""


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="hadolint's package is for x86-64"
)
def test_hadolint_finds_nothing() -> None:
    """Red when an instruction breaks one of its rules."""
    hadolint = Path(sys.executable).with_name("hadolint")
    command = [str(hadolint), "--no-color", str(DOCKER / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCKER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_script(name: str, folder: Path, *args: str, fail_on: str = "nothing", **env):
    """A script with `python3` replaced by one that writes down what it is called with."""
    folder.mkdir(exist_ok=True)
    program, record = folder / "python3", folder / "record"
    program.write_text(RECORDER)
    program.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    extra = {"RECORD": str(record), "FAIL_ON": fail_on, "PATH": path, **env}
    command = ["sh", str(DOCKER / name), *args]
    run = subprocess.run(
        command, env=os.environ | extra, capture_output=True, text=True, cwd="/"
    )
    return run.returncode, record.read_text().splitlines()


def test_install_checks_before_and_after(tmp_path: Path) -> None:
    """Red when the wheel goes over another release, or nobody looks at the result."""
    code, calls = run_script("install.sh", tmp_path)
    assert code == 0
    steps = ["installed.py base", "fork wheel", "pip install", "installed.py fork"]
    assert [next(s for s in steps if s in call) for call in calls] == steps
    pip = calls[2]
    for option in ("--no-deps", "--no-index", "--force-reinstall"):
        assert option in pip
    assert pip.endswith("sglang-1-py3-none-any.whl")


@pytest.mark.parametrize(
    ("step", "done"), [("installed.py base", 1), ("fork wheel", 2), ("pip install", 3)]
)
def test_install_stops_at_the_first_failure(
    tmp_path: Path, step: str, done: int
) -> None:
    """Red when an image is built although a step failed."""
    code, calls = run_script("install.sh", tmp_path, fail_on=step)
    assert code != 0 and len(calls) == done


def test_install_takes_a_wheel_that_is_there(tmp_path: Path) -> None:
    """Red when a build without a package index downloads all the same."""
    _, calls = run_script("install.sh", tmp_path, WHEEL="/w/sglang.whl")
    assert calls[1].endswith("--wheel /w/sglang.whl")


def test_serve_listens_where_it_is_told(tmp_path: Path) -> None:
    """Red when address, port, arm or the user's arguments do not reach the launcher."""
    where = {"HOST": "10.1.2.3", "PORT": "31000", "DRAFT": "on"}
    _, calls = run_script("serve.sh", tmp_path, "--model-path", "a b", **where)
    assert calls == [
        "-m sglang.launch_server --host 10.1.2.3 --port 31000 --model-path a b "
        "--speculative-vocab-parallel-draft on"
    ]


@pytest.mark.parametrize(
    ("stage", "version", "fits"),
    [
        ("base", "{pin}", True),
        ("base", "{pin}+local.checkout", True),
        ("base", "0.5.22", False),
        ("base", None, False),
        ("fork", "{fork}", True),
        ("fork", "{pin}", False),
        ("fork", None, False),
    ],
)
def test_which_versions_fit(stage: str, version: str | None, fits: bool) -> None:
    """Red when the fork is put over another release, or a stock one passes as the fork."""
    module = load("installed")
    names = {"pin": module.PINS.version, "fork": module.PINS.local_version}
    found = module.problem(stage, version and version.format(**names))
    assert (found is None) == fits
    assert fits or "needs" in found


def test_health_check() -> None:
    """Red when a dead or failing server counts as healthy."""
    healthy = load("healthcheck").healthy

    class Handler(http.server.BaseHTTPRequestHandler):
        status = 200

        def do_GET(self) -> None:
            self.send_response(self.status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    assert not healthy(str(free_port()))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        port = str(server.server_address[1])
        assert healthy(port)
        for Handler.status in (503, 204):
            assert not healthy(port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_image_is_that_of_the_pin() -> None:
    """Red when the pin moves and the image stays behind."""
    tag = f"v{load('installed').PINS.version}"
    dockerfile = (DOCKER / "Dockerfile").read_text()
    assert f"ARG SGLANG_TAG={tag}\n" in dockerfile
    assert "FROM lmsysorg/sglang:${SGLANG_TAG}${SGLANG_DIGEST:+@${SGLANG_DIGEST}}" in (
        dockerfile
    )
    assert f"${{SGLANG_TAG:-{tag}}}" in (DOCKER / "compose.yaml").read_text()
    for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            assert (ROOT / line[1:]).exists(), line
    for word in dockerfile.replace('"', " ").split():
        if word.startswith("/opt/vocab-parallel-draft/"):
            assert (ROOT / word.removeprefix("/opt/vocab-parallel-draft/")).is_file()


def test_the_arms_of_compose_differ_in_the_flag() -> None:
    """Red when the services are not the same server with another flag, GPUs and port."""
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    dense, packed = services["dense"], services["packed"]
    assert dense.pop("environment")["DRAFT"] == "off"
    assert packed.pop("environment")["DRAFT"] == "on"
    ports = dense.pop("ports") + packed.pop("ports")
    assert dense == packed and len(set(ports)) == 2
    assert all(port.startswith("${BIND:-127.0.0.1}:") for port in ports)


def test_arms_script(tmp_path: Path) -> None:
    """Red when a dead arm is waited for, or its log is not collected."""
    docker = tmp_path / "docker"
    docker.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> {tmp_path}/record\n'
        'case "$*" in *"ps --all"*) echo id ;; *inspect*) echo "$STATE" ;; '
        '*" logs "*) echo "last words" ;; esac\n'
    )
    docker.chmod(0o755)
    base = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    base |= {"LOGS": str(tmp_path / "logs")}

    def arms(*args: str, state: str = "") -> subprocess.CompletedProcess:
        command = ["sh", str(DOCKER / "arms.sh"), *args]
        env = os.environ | base | {"STATE": state}
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60
        )

    assert arms("wait", state="running healthy").returncode == 0
    failed = arms("wait", state="exited unhealthy")
    assert failed.returncode == 1 and "dense is not running" in failed.stderr
    assert (tmp_path / "logs" / "dense.log").read_text() == "last words\n"
    assert arms("nonsense").returncode == 2
    arms("up")
    last = (tmp_path / "record").read_text().splitlines()[-1]
    assert last.endswith("up --detach dense packed")
    assert json.dumps(str(DOCKER / "compose.yaml"))[1:-1] in last
