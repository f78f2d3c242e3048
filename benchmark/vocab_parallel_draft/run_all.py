"""Every benchmark that this machine can run; says which it skips, and why."""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import List, NamedTuple, Optional

import torch

HERE = Path(__file__).resolve().parent


class Benchmark(NamedTuple):
    """A command, or the reason why this machine cannot run it."""

    name: str
    command: List[str]
    skipped: Optional[str] = None


def script(name: str) -> List[str]:
    return [sys.executable, str(HERE / name)]


def transport(ranks: int, device: str) -> List[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    bench = [str(HERE / "bench_transport.py"), "--device", device]
    return [*launcher, "--nproc-per-node", str(ranks), *bench]


def benchmarks(gpus: int) -> List[Benchmark]:
    """What there is to run on a machine with so many GPUs."""
    needs_one = None if gpus else "needs a CUDA GPU"
    group = next((ranks for ranks in (8, 4, 2) if ranks <= gpus), 2)
    needs_group = None if gpus >= 2 else f"needs 2 CUDA GPUs or more, {gpus} here"
    return [
        Benchmark("sampling layer, gloo", script("bench_sampling_layer.py")),
        Benchmark("transport, gloo, 2 ranks", transport(2, "cpu")),
        Benchmark("transport, gloo, 4 ranks", transport(4, "cpu")),
        Benchmark(
            f"transport, NCCL and NVLink push, {group} ranks",
            transport(group, "cuda"),
            needs_group,
        ),
        Benchmark("shard winner kernels", script("bench_shard_winner.py"), needs_one),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cases everywhere")
    options = parser.parse_args()
    extra = ["--quick"] if options.quick else []
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    failed = []
    for benchmark in benchmarks(gpus):
        if benchmark.skipped:
            print(f"== skipped: {benchmark.name}: {benchmark.skipped}", flush=True)
            continue
        print(f"== {benchmark.name}", flush=True)
        if subprocess.run([*benchmark.command, *extra]).returncode:
            failed.append(benchmark.name)
    if failed:
        sys.exit("bench: failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
