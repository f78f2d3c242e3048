"""Commands of the clients, and what is read from the files that they leave.

`recorded_aiperf.json` has parts of three exports of AIPerf 0.13.0, as it wrote them: of a
small model on the CPU engine, and of a server that fails one request or ends one early.
Cases that it did not give are made by hand.
"""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.ab.clients import CLIENTS, ClientError, Load
from scripts.ab.clients.aiperf import AIPerf
from scripts.ab.clients.sglang_serving import RESULT, SGLangServing

LOAD = Load(concurrency=2, requests=3, input_tokens=16, output_tokens=8, seed=7)
URL = "http://127.0.0.1:1"


def sglang_export(**changes) -> dict:
    latencies = {
        f"{stat_}_{name}_ms": value
        for name, value in (("ttft", 20.0), ("tpot", 5.0), ("e2e_latency", 55.0))
        for stat_ in ("median", "mean", "p99")
    }
    return {
        "completed": 3,
        "duration": 2.0,
        "total_output_tokens": 24,
        "output_throughput": 12.0,
        "request_throughput": 1.5,
        "errors": ["", "", ""],
        "output_lens": [8, 8, 8],
        **latencies,
        **changes,
    }


def read_sglang(folder: Path, **changes):
    lines = ["{}", json.dumps(sglang_export(**changes))]
    (folder / RESULT).write_text("\n".join(lines) + "\n")
    return SGLangServing().read(LOAD, folder)


def test_sglang_result(tmp_path: Path) -> None:
    """Red when a figure is taken from another field or another line."""
    result = read_sglang(tmp_path)
    assert (result.completed, result.errors, result.output_tokens) == (3, 0, 24)
    assert result.output_tok_per_s == 12.0 and result.duration_s == 2.0
    assert (result.ttft_ms.median, result.tpot_ms.mean) == (20.0, 5.0)
    assert result.e2e_ms.p99 == 55.0


@pytest.mark.parametrize(
    ("changes", "errors", "message"),
    [
        (
            {
                "completed": 2,
                "errors": ["", "trace\nOSError: gone", ""],
                "output_lens": [8, 0, 8],
            },
            1,
            "OSError: gone",
        ),
        ({"completed": 2}, 1, None),
        ({"output_lens": [8, 5, 8]}, 1, "5 of 8 output tokens"),
    ],
)
def test_sglang_errors(tmp_path: Path, changes, errors, message) -> None:
    """Red when a failed, lost or short request counts as completed."""
    result = read_sglang(tmp_path, **changes)
    assert result.errors == errors
    assert result.error_messages == ([message] if message else [])


@pytest.mark.parametrize("text", ["", "{}\n", "not JSON\n"])
def test_sglang_without_a_result(tmp_path: Path, text: str) -> None:
    """Red when a client that left nothing is an unexpected exception."""
    (tmp_path / RESULT).write_text(text)
    with pytest.raises(ClientError, match="client sglang"):
        SGLangServing().read(LOAD, tmp_path)


def test_sglang_command_is_one_that_it_takes(tmp_path: Path) -> None:
    """Red when the pinned client does not know an option. It gets as far as looking for
    the server, which is not there."""
    command = SGLangServing().command(LOAD, URL, str(tmp_path), tmp_path)
    command += ["--ready-check-timeout-sec", "1"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "is not ready" in run.stdout, run.stderr[-2000:]
    assert command[:3] == [sys.executable, "-m", "sglang.benchmark.serving"]
    assert command[command.index("--random-range-ratio") + 1] == "1.0"


def block(unit: str, value: float, **more) -> dict:
    return {"unit": unit, "avg": value, "p50": value, "p99": value} | more


def aiperf_export(**changes) -> dict:
    return {
        "schema_version": "1.1",
        "request_count": {"unit": "requests", "avg": 3.0},
        "request_throughput": {"unit": "requests/sec", "avg": 1.5},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 12.0},
        "output_sequence_length": block("tokens", 8.0, min=8, max=8, count=3),
        "time_to_first_token": block("ms", 20.0, p50=19.0, p99=30.0, count=3),
        "inter_token_latency": block("ms", 5.0, count=3),
        "request_latency": block("ms", 55.0, count=3),
        "was_cancelled": False,
        "error_summary": [],
        **changes,
    }


def read_aiperf(folder: Path, **changes):
    path = folder / "nested" / "profile_export_aiperf.json"
    path.parent.mkdir()
    path.write_text(json.dumps(aiperf_export(**changes)))
    return AIPerf().read(LOAD, folder)


def test_aiperf_result(tmp_path: Path) -> None:
    """Red when the same run through the other client gives other figures."""
    result = read_aiperf(tmp_path)
    assert (result.completed, result.errors, result.output_tokens) == (3, 0, 24)
    assert result.output_tok_per_s == 12.0 and result.duration_s == pytest.approx(2.0)
    assert result.ttft_ms.median == 19.0 and result.ttft_ms.p99 == 30.0
    assert result.tpot_ms.mean == 5.0 and result.e2e_ms.median == 55.0


@pytest.mark.parametrize(
    ("name", "load", "completed", "errors", "message"),
    [
        ("complete", Load(2, 4, 16, 32, 9), 4, 0, None),
        ("one_failed", LOAD, 2, 1, "500 Internal Server Error: "),
        ("one_short", LOAD, 3, 1, "5 of 8 output tokens"),
    ],
)
def test_aiperf_as_recorded(tmp_path, name, load, completed, errors, message) -> None:
    """Red when what AIPerf writes is read otherwise than it means it."""
    recorded = Path(__file__).with_name("recorded_aiperf.json")
    data = json.loads(recorded.read_text())[name]
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps(data))
    result = AIPerf().read(load, tmp_path)
    assert (result.completed, result.errors) == (completed, errors)
    assert [text.startswith(message) for text in result.error_messages] == (
        [True] if message else []
    )
    # Two of its own figures that are not read: the sum of tokens and the run's length.
    assert result.output_tokens == data["output_sequence_length"]["sum"]
    assert result.duration_s == pytest.approx(
        data["benchmark_duration"]["avg"], rel=0.25
    )
    answer = result.ttft_ms.mean + result.tpot_ms.mean * (load.output_tokens - 1)
    if not errors:
        assert answer == pytest.approx(result.e2e_ms.mean)


def test_aiperf_units(tmp_path: Path) -> None:
    """Red when the unit beside a value is not read."""
    seconds = block("sec", 0.02, count=3)
    assert read_aiperf(tmp_path, time_to_first_token=seconds).ttft_ms.mean == 20.0


@pytest.mark.parametrize(
    "changes",
    [
        {"request_count": {"avg": 2.0}, "error_request_count": {"avg": 1.0}},
        {
            "request_count": {"avg": 3.0},
            "error_summary": [{"error_details": {"type": "TimeoutError"}, "count": 1}],
        },
        {"request_count": {"avg": 2.0}, "was_cancelled": True},
        {"output_sequence_length": block("tokens", 7.0, min=5, max=8)},
        {
            "output_sequence_length": block("tokens", 7.0, min=5, max=8),
            "osl_mismatch_count": {"avg": 1.0},
        },
    ],
)
def test_aiperf_errors(tmp_path: Path, changes: dict) -> None:
    """Red when one of the ways in which AIPerf reports a failure is not counted."""
    assert read_aiperf(tmp_path, **changes).errors == 1


def test_aiperf_when_everything_failed(tmp_path: Path) -> None:
    """Red when an export without figures, which AIPerf writes then, is a crash."""
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps({"error_request_count": {"avg": 3.0}}))
    with pytest.raises(ClientError, match="no request completed"):
        AIPerf().read(LOAD, tmp_path)
    path.unlink()
    with pytest.raises(ClientError, match="no profile_export_aiperf.json"):
        AIPerf().read(LOAD, tmp_path)


def test_aiperf_command(tmp_path: Path) -> None:
    """Red when a run is not greedy, not of a fixed length, or not streamed."""
    command = AIPerf("/opt/aiperf").command(LOAD, URL, "model", tmp_path)
    assert command[:2] == ["/opt/aiperf", "profile"] and "--streaming" in command
    options = dict(zip(command, command[1:]))
    assert json.loads(options["--extra-inputs"]) == {
        "ignore_eos": True,
        "temperature": 0,
    }
    for option, value in (
        ("--isl", "16"),
        ("--isl-stddev", "0"),
        ("--osl", "8"),
        ("--concurrency", "2"),
        ("--request-count", "3"),
        ("--random-seed", "7"),
        ("--artifact-dir", str(tmp_path)),
    ):
        assert options[option] == value


def test_a_dataset_reaches_both_clients(tmp_path: Path) -> None:
    """Red when a ShareGPT-style file is ignored or its prompts are cut off."""
    data = tmp_path / "sharegpt.json"
    turns = [{"value": "first"}, {"value": "answer"}]
    short = {"conversations": turns[:1]}
    data.write_text(json.dumps([short] + [{"conversations": turns}] * 5))
    load = Load(2, 3, 16, 8, 7, dataset=data)
    sglang = SGLangServing().command(load, URL, "model", tmp_path)
    assert sglang[sglang.index("--dataset-path") + 1] == str(data)
    assert "--tokenize-prompt" not in sglang
    aiperf = AIPerf().command(load, URL, "model", tmp_path / "run")
    path = Path(aiperf[aiperf.index("--input-file") + 1])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"text": "first"}] * 3 and "--isl" not in aiperf
    assert aiperf[aiperf.index("--dataset-sampling-strategy") + 1] == "sequential"


def test_missing_client(tmp_path: Path) -> None:
    """Red when a client that is not there is found out only after a server start."""
    with pytest.raises(ClientError, match="--aiperf"):
        AIPerf(str(tmp_path / "none")).version()
    program = tmp_path / "aiperf"
    program.write_text("#!/bin/sh\necho 0.13.0\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert AIPerf(str(program)).version() == "0.13.0"
    assert set(CLIENTS) == {"sglang", "aiperf"}
