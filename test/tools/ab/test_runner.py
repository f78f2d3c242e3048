"""The whole kit around a stand-in server and client: plan, resumption, failures, report.

`test/e2e/test_ab.py` does it with the real ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from scripts.ab.__main__ import main
from scripts.ab.stats import HIGHER, NONE
from scripts.serving import free_port
from scripts.serving.cpu_engine import ROOT
from scripts.small_model.folder import write_model
from scripts.small_model.spec import ModelSpec

STAND_IN = Path(__file__).resolve().parent / "stand_in"
MARKER = "AB_STAND_IN"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(
        ModelSpec(vocab_size=400), tmp_path_factory.mktemp("m") / "model"
    )


class Kit:
    """`make ab` on the stand-ins, with its switches and its results."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.out = folder / "out"
        self.switches = folder / "switches"
        self.switches.mkdir()
        load = ["--concurrency", "1,2", "--requests", "2,4"]
        paths = ["--model-path", str(model), "--fork", str(STAND_IN)]
        self.argv = ["cpu-small", *paths, *load, "--out", str(self.out)]

    def run(self, *args: str) -> int:
        return main([*self.argv, *args])

    def switch(self, name: str) -> None:
        (self.switches / name).touch()

    def report(self) -> dict:
        return json.loads((self.out / "report.json").read_text())

    def processes(self) -> list[list[str]]:
        """Servers and clients of this kit that are running."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            try:
                if process.environ().get(MARKER) == str(self.switches):
                    if process.pid != os.getpid():
                        found.append(process.info["cmdline"])
            except psutil.Error:
                continue
        return found


@pytest.fixture(scope="module")
def one_pair(tmp_path_factory: pytest.TempPathFactory, model: Path):
    """A finished comparison of one pair, to be read only."""
    made = Kit(tmp_path_factory.mktemp("one-pair"), model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARKER, str(made.switches))
        assert made.run("--pairs", "1") == 0
    return made


@pytest.fixture
def kit(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch):
    made = Kit(tmp_path, model)
    monkeypatch.setenv(MARKER, str(made.switches))
    yield made
    assert made.processes() == []


def test_a_whole_comparison(kit: Kit, capsys) -> None:
    """Red when sides, pairs or figures are mixed up between records and report."""
    assert kit.run() == 0
    report = kit.report()
    assert report["sides"] == ["dense", "packed"] and report["complete"]
    folders = sorted(path.name for path in (kit.out / "raw").iterdir() if path.is_dir())
    assert folders == [
        "00-dense",
        "01-packed",
        "02-packed",
        "03-dense",
        "04-dense",
        "05-packed",
    ]
    total = report["overall"]["sglang"]["metrics"]["output_tok_per_s"]
    assert total["finding"] == HIGHER and 1.17 < total["ratio"] < 1.23
    assert "packed gives" in report["verdict"] and report["comparable"]
    assert report["verdict"] in capsys.readouterr().out
    assert report["outputs"]["compared"] == 8 and not report["outputs"]["differing"]
    assert report["errors"]["dense"] == {"requests": 18, "errors": 0, "messages": []}
    assert report["by_side"]["packed"]["accept_length_check"] == 2.0
    assert report["by_side"]["packed"]["memory_peak_mib"]["median"] > 0
    assert report["interruptions"] == []


def test_every_figure_leads_to_its_record(one_pair: Kit) -> None:
    """Red when a figure has no record, or a record does not say how it was made."""
    kit = one_pair
    for point in kit.report()["points"]:
        for side, names in point["records"].items():
            values = []
            for name in names:
                record = json.loads((kit.out / name).read_text())
                assert record["start"]["side"] == side
                values.append(record["result"]["output_tok_per_s"])
                assert "--base-url" in record["command"]
                assert "sglang.launch_server" in record["server_command"]
                for field in (
                    "commit",
                    "versions",
                    "hardware",
                    "started_at",
                    "ended_at",
                ):
                    assert record[field]
                assert (kit.out / record["client_files"]).is_dir()
            spread = point["metrics"]["output_tok_per_s"]["sides"][side]
            assert spread["samples"] == values


def test_the_arms_differ_in_one_word(one_pair: Kit) -> None:
    """Red when the servers are started with different arguments."""
    commands = [
        json.loads((one_pair.out / "raw" / name / "attempt-0.json").read_text())[
            "command"
        ]
        for name in ("00-dense", "01-packed")
    ]
    port = commands[0].index("--port") + 1
    differing = [
        (a, b)
        for i, (a, b) in enumerate(zip(*commands, strict=True))
        if a != b and i != port
    ]
    assert differing == [("off", "on")]


def test_null_run(kit: Kit) -> None:
    """Red when the null run serves packed, or noise passes for a difference."""
    assert kit.run("--null", "--concurrency", "1", "--requests", "2") == 0
    report = kit.report()
    assert report["sides"] == ["dense", "dense-again"]
    assert report["by_side"]["dense-again"]["draft_path"][0]["path"] == "dense"
    total = report["overall"]["sglang"]["metrics"]["output_tok_per_s"]
    assert total["finding"] == NONE
    assert report["verdict"].startswith("No difference shown")


def test_one_pair_is_no_verdict(one_pair: Kit) -> None:
    """Red when a single pair is enough for a claim."""
    assert one_pair.report()["verdict"].startswith("No difference shown")


def test_resumes_where_it_stopped(kit: Kit, capsys) -> None:
    """Red when finished runs are made again, or an unfinished one gives a verdict."""
    assert kit.run("--pairs", "1", "--stop-after", "1") == 0
    record = kit.out / "raw" / "00-dense" / "sglang-c001.json"
    before = record.read_bytes()
    assert kit.report()["verdict"].startswith("No verdict: 1 of 2")
    assert kit.run("--pairs", "1") == 0
    assert "resuming: 1 of 2 server starts" in capsys.readouterr().out
    assert record.read_bytes() == before and kit.report()["complete"]


def test_other_settings_do_not_mix(kit: Kit, capsys) -> None:
    """Red when runs under different settings end up in one report."""
    kit.run("--pairs", "1", "--stop-after", "1")
    assert kit.run("--pairs", "1", "--seed", "8") == 2
    assert "other settings (profile)" in capsys.readouterr().err
    assert kit.run("--pairs", "1", "--seed", "8", "--fresh", "--stop-after", "1") == 0


def test_a_server_that_dies_is_replaced(kit: Kit, capsys) -> None:
    """Red when a lost server ends the comparison, or the report keeps quiet about it."""
    kit.switch("die-once")
    assert kit.run("--pairs", "1") == 0
    out = capsys.readouterr().out
    assert "the server was lost" in out and "ran out of memory" in out
    report = kit.report()
    assert len(report["interruptions"]) == 1
    assert "Server start 1 (dense) ended early" in report["interruptions"][0]
    assert report["complete"]


def test_killed_mid_run_then_resumed(kit: Kit) -> None:
    """Red when a killed runner leaves processes, or its finished runs are lost."""
    kit.run("--pairs", "1", "--stop-after", "1")
    kit.switch("slow")
    command = [sys.executable, "-m", "scripts.ab", *kit.argv, "--pairs", "1"]
    runner = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (kit.switches / "client-runs").exists():
        assert runner.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(runner.pid, signal.SIGKILL)
    runner.wait()
    while kit.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert kit.processes() == []
    assert kit.run("--pairs", "1") == 0
    report = kit.report()
    assert report["complete"] and "killed" in report["interruptions"][0]


def test_a_failed_request_allows_no_verdict(kit: Kit) -> None:
    """Red when a win is reported although requests failed."""
    kit.switch("lose-one")
    one = ["--pairs", "1", "--concurrency", "1", "--requests", "2"]
    assert kit.run(*one) == 1
    report = kit.report()
    assert report["verdict"] == "No verdict: requests failed (1 dense, 1 packed)."
    assert report["errors"]["dense"]["messages"] == ["gone"]


def one_error(kit: Kit, capsys, *args: str) -> str:
    """Run what has to fail; its message."""
    assert kit.run(*args) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error and kit.processes() == []
    assert len(re.findall(r"^ab: ", error, re.M)) == 1
    return error


def test_a_server_that_dies_at_start(kit: Kit, capsys) -> None:
    """Red when a model that does not fit is tried again, or its log is kept back."""
    kit.switch("die-at-start")
    error = one_error(kit, capsys)
    assert "the model does not fit" in error and "\nbye" in error
    assert "server-0.log" in error
    assert not (kit.out / "raw" / "00-dense" / "attempt-1.json").exists()


def test_a_client_that_fails(kit: Kit, capsys) -> None:
    """Red when a client without a result is a crash or a zero."""
    kit.switch("fail")
    assert "no result today" in one_error(kit, capsys)


def test_bad_input(kit: Kit, capsys, tmp_path: Path) -> None:
    """Red when one of these starts a server or gives no hint what to do."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"--port {port}" in one_error(kit, capsys, "--port", port)
    assert "--aiperf" in one_error(kit, capsys, "--client", "aiperf")
    assert "choose from" in one_error(kit, capsys, "--client", "curl")
    assert "one number of requests" in one_error(kit, capsys, "--concurrency", "1")
    assert "no such file" in one_error(kit, capsys, "--dataset", str(tmp_path / "x"))
    assert "no such folder" in one_error(kit, capsys, "--model-path", "/nowhere/m")
    assert "make fork" in one_error(kit, capsys, "--fork", str(tmp_path))
    kit.argv[0] = "no-such-profile"
    assert "cpu-small" in one_error(kit, capsys)
    assert not kit.out.exists()


def test_a_free_port_is_used(kit: Kit) -> None:
    """Red when --port is not where the servers listen."""
    port = free_port()
    assert kit.run("--pairs", "1", "--stop-after", "1", "--port", str(port)) == 0
    path = kit.out / "raw" / "00-dense" / "attempt-0.json"
    assert str(port) in json.loads(path.read_text())["command"]


def test_attached_servers(kit: Kit, capsys) -> None:
    """Red when servers of someone else are started, stopped, or their sides swapped."""
    servers, attach = [], []
    for side, mode in (("dense", "off"), ("packed", "on")):
        port = free_port()
        script = STAND_IN / "sglang" / "launch_server.py"
        flag = ["--speculative-vocab-parallel-draft", mode]
        command = [sys.executable, str(script), "--port", str(port), *flag]
        servers.append(subprocess.Popen(command))
        attach += ["--attach", f"{side}=http://127.0.0.1:{port}/"]
    try:
        assert kit.run(*attach) == 0
        assert all(server.poll() is None for server in servers)
    finally:
        for server in servers:
            server.kill()
            server.wait()
    report = kit.report()
    assert "packed gives" in report["verdict"]
    assert report["by_side"]["dense"]["memory_peak_mib"] is None
    assert any(note.startswith("Memory.") for note in report["not_measured"])
    assert "no URL for packed" in one_error(kit, capsys, *attach[:2])
    assert "SIDE=URL" in one_error(kit, capsys, "--attach", "sparse=http://x")
