"""SGLang's own client, `python -m sglang.benchmark.serving`, on the native endpoint."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any

from scripts.ab.clients.base import Client, ClientError, Latency, Load, Result

RESULT = "sglang.jsonl"


class SGLangServing(Client):
    """Streams from `/generate` and sends token ids, so that lengths are exact."""

    name = "sglang"

    def version(self) -> str:
        try:
            return importlib.metadata.version("sglang")
        except importlib.metadata.PackageNotFoundError:
            raise ClientError(
                "client sglang: SGLang is not installed in this environment; "
                "run `make env`"
            ) from None

    def command(self, load: Load, url: str, model: str, folder: Path) -> list[str]:
        return [
            *(sys.executable, "-m", "sglang.benchmark.serving"),
            *("--backend", "sglang"),
            *("--base-url", url),
            *("--model", model),
            *("--tokenizer", model),
            *_dataset(load),
            *("--num-prompts", str(load.requests)),
            *("--max-concurrency", str(load.concurrency)),
            *("--seed", str(load.seed)),
            *("--temperature", "0"),
            *("--warmup-requests", "0"),
            *("--output-file", str(folder / RESULT)),
            "--output-details",
            "--disable-tqdm",
        ]

    def read(self, load: Load, folder: Path) -> Result:
        path = folder / RESULT
        try:
            data = json.loads(path.read_text().splitlines()[-1])
            return _result(data, load)
        except (OSError, IndexError, ValueError, KeyError) as error:
            raise ClientError(
                f"client sglang: no result in {path} ({type(error).__name__}: {error})"
            ) from None


def _dataset(load: Load) -> list[str]:
    if load.dataset is not None:
        return [
            *("--dataset-name", "sharegpt"),
            *("--dataset-path", str(load.dataset)),
            *("--sharegpt-output-len", str(load.output_tokens)),
        ]
    return [
        *("--dataset-name", "random-ids"),
        *("--random-input-len", str(load.input_tokens)),
        *("--random-output-len", str(load.output_tokens)),
        # Its 0.0 means lengths from 1 to the given one; 1.0 means the given one.
        *("--random-range-ratio", "1.0"),
        "--tokenize-prompt",
    ]


def _result(data: dict[str, Any], load: Load) -> Result:
    failed = [str(error) for error in data["errors"] if error]
    # A stream that broke off without an error message is short, not failed.
    short = [n for n in data["output_lens"] if 0 < n < load.output_tokens]
    messages = [_last_line(error) for error in failed]
    messages += [f"{n} of {load.output_tokens} output tokens" for n in short]
    return Result(
        completed=data["completed"],
        errors=max(load.requests - data["completed"], len(failed)) + len(short),
        error_messages=sorted(set(messages))[:5],
        duration_s=data["duration"],
        output_tokens=data["total_output_tokens"],
        output_tok_per_s=data["output_throughput"],
        request_per_s=data["request_throughput"],
        **{
            f"{kind}_ms": Latency(
                median=data[f"median_{long}_ms"],
                mean=data[f"mean_{long}_ms"],
                p99=data[f"p99_{long}_ms"],
            )
            for kind, long in (
                ("ttft", "ttft"),
                ("tpot", "tpot"),
                ("e2e", "e2e_latency"),
            )
        },
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:300]
