"""AIPerf, `aiperf profile`, streaming from the OpenAI chat endpoint.

Tried with 0.13.0, whose `profile_export_aiperf.json` has schema 1.4. When every request fails
it writes no such file and exits with 1.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.ab.clients.base import Client, ClientError, Latency, Load, Result

RESULT = "profile_export_aiperf.json"
PROMPTS = "prompts.jsonl"
_MILLISECONDS = {"ms": 1.0, "s": 1000.0, "sec": 1000.0, "us": 1e-3, "ns": 1e-6}


class AIPerf(Client):
    """`executable` may be in an environment of its own: AIPerf pins other packages."""

    name = "aiperf"

    def __init__(self, executable: str = "aiperf") -> None:
        self.executable = executable

    def version(self) -> str:
        path = shutil.which(self.executable)
        if path is None:
            raise ClientError(
                f"client aiperf: no program {self.executable!r}; install it into an "
                "environment of its own (pip install aiperf) and name it with --aiperf "
                "PATH, or choose --client sglang"
            )
        run = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=120
        )
        if run.returncode:
            raise ClientError(f"client aiperf: {path} --version: {run.stderr[-300:]}")
        return run.stdout.strip()

    def command(self, load: Load, url: str, model: str, folder: Path) -> list[str]:
        return [
            *(self.executable, "profile"),
            *("--model", model),
            *("--tokenizer", model),
            *("--url", url),
            *("--endpoint-type", "chat"),
            "--streaming",
            "--use-server-token-count",
            *("--extra-inputs", json.dumps({"ignore_eos": True, "temperature": 0})),
            *self._dataset(load, folder),
            *("--osl", str(load.output_tokens)),
            *("--concurrency", str(load.concurrency)),
            *("--request-count", str(load.requests)),
            *("--random-seed", str(load.seed)),
            *("--artifact-dir", str(folder)),
            "--no-server-metrics",
        ]

    def read(self, load: Load, folder: Path) -> Result:
        path = next(iter(sorted(folder.rglob(RESULT))), None)
        if path is None:
            raise ClientError(f"client aiperf: no {RESULT} below {folder}")
        try:
            data = json.loads(path.read_text())
            return _result(data, load)
        except (OSError, ValueError, KeyError) as error:
            raise ClientError(
                f"client aiperf: cannot read {path} ({type(error).__name__}: {error})"
            ) from None

    @staticmethod
    def _dataset(load: Load, folder: Path) -> list[str]:
        if load.dataset is None:
            return [
                *("--isl", str(load.input_tokens)),
                *("--isl-stddev", "0"),
                *("--num-dataset-entries", str(load.requests)),
            ]
        path = folder / PROMPTS
        folder.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"text": text}) for text in first_turns(load)]
        path.write_text("\n".join(lines) + "\n")
        return [
            *("--input-file", str(path)),
            *("--custom-dataset-type", "single_turn"),
            *("--dataset-sampling-strategy", "sequential"),
        ]


def first_turns(load: Load) -> Iterator[str]:
    """The opening message of as many ShareGPT conversations as `load` has requests."""
    found = 0
    for item in json.loads(Path(load.dataset).read_text()):
        turns = item.get("conversations") or item.get("conversation") or []
        if len(turns) >= 2 and found < load.requests:
            found += 1
            yield turns[0]["value"]


def _result(data: dict[str, Any], load: Load) -> Result:
    completed = round(_avg(data, "request_count", 0.0))
    summary = data.get("error_summary") or []
    # Counted by a metric, by the summary, or (a run cut short) by what is missing.
    failed = max(
        round(_avg(data, "error_request_count", 0.0)),
        sum(item["count"] for item in summary),
        load.requests - completed,
    )
    messages = [_message(item.get("error_details", item)) for item in summary]
    if data.get("was_cancelled"):
        messages.append("AIPerf says that the run was cancelled")
    if not completed:
        raise ValueError(f"no request completed: {messages[:3]}")
    length = data["output_sequence_length"]
    short = 0
    if length["min"] < load.output_tokens:
        # The metric leaves out answers that are only a little shorter.
        short = max(1, round(_avg(data, "osl_mismatch_count", 0.0)))
        messages.append(f"{length['min']:.0f} of {load.output_tokens} output tokens")
    tokens = round(length["avg"] * completed)
    throughput = _avg(data, "output_token_throughput")
    return Result(
        completed=completed,
        errors=failed + short,
        error_messages=messages[:5],
        duration_s=tokens / throughput,
        output_tokens=tokens,
        output_tok_per_s=throughput,
        request_per_s=_avg(data, "request_throughput"),
        ttft_ms=_latency(data["time_to_first_token"]),
        tpot_ms=_latency(data["inter_token_latency"]),
        e2e_ms=_latency(data["request_latency"]),
    )


def _message(details: dict[str, Any]) -> str:
    """One line: `500 Internal Server Error: what the server said`."""
    kind = f"{details.get('code') or ''} {details.get('type') or 'error'}".strip()
    return f"{kind}: {details.get('message', details)}"[:300]


def _avg(data: dict[str, Any], metric: str, default: float | None = None) -> float:
    if metric not in data and default is not None:
        return default
    return data[metric]["avg"]


def _latency(block: dict[str, Any]) -> Latency:
    scale = _MILLISECONDS[block["unit"]]
    return Latency(block["p50"] * scale, block["avg"] * scale, block["p99"] * scale)
