"""A client that makes up its figures from the arm and the seed it is given."""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from pathlib import Path

SWITCHES = Path(os.environ["AB_STAND_IN"])


def value_of(option: str) -> str:
    return sys.argv[sys.argv.index(option) + 1]


def get(path: str) -> dict:
    with urllib.request.urlopen(value_of("--base-url") + path, timeout=10) as response:
        return json.load(response)


def main() -> None:
    if (SWITCHES / "fail").exists():
        sys.exit("stand-in: no result today")
    if (SWITCHES / "slow").exists():
        (SWITCHES / "slow").rename(SWITCHES / "client-runs")
        time.sleep(60)
    packed = get("/server_info")["internal_states"][0]["vocab_parallel_draft"]["path"]
    seed, requests = int(value_of("--seed")), int(value_of("--num-prompts"))
    tokens = int(value_of("--random-output-len"))
    # Noise of a percent that is not the same on both sides.
    noise = 1 + ((seed * 7 + len(packed)) % 5 - 2) / 200
    rate = (120.0 if packed == "packed" else 100.0) * noise
    failed = 1 if (SWITCHES / "lose-one").exists() else 0
    done = requests - failed
    row = {
        "completed": done,
        "duration": done * tokens / rate,
        "total_output_tokens": done * tokens,
        "output_throughput": rate,
        "request_throughput": rate / tokens,
        "errors": ["gone"] * failed + [""] * done,
        "output_lens": [0] * failed + [tokens] * done,
    }
    for name in ("ttft", "tpot", "e2e_latency"):
        for kind in ("median", "mean", "p99"):
            row[f"{kind}_{name}_ms"] = 1000 / rate
    Path(value_of("--output-file")).write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
