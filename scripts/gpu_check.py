"""Check and time the Triton kernels on a bare GPU machine: torch and Triton only.

``python scripts/gpu_check.py`` runs the registered kernel tests that need CUDA, then
times the local reduction and the merge in CUDA graphs, with the L2 cache flushed,
against ``torch.argmax`` on the gathered rows and the card's copy bandwidth. It writes
one file, ``build/gpu_check.json``, that names the hardware, and fails when a case does.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import statistics
import sys
import types
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "test/registered/kernels")]

import torch  # noqa: E402
import triton  # noqa: E402

from bare_sglang import use_bare_sglang  # noqa: E402

TEST_CLASSES = {
    "test_shard_winner": ["TestShardWinnerCuda"],
    "test_shard_winner_numerics": ["TestNumericsCuda"],
    "test_shard_winner_cuda": [
        "TestKernelsOnCuda",
        "TestSoftcapCasesOnCuda",
        "TestCudaGraph",
    ],
}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RANKS_OF_WIDTH = {18992: 8, 31040: 8, 62080: 4, 128256: 1}
"""V/TP of 151936/8, 248320/8, 248320/4 and 128256/1."""
REPEATS = 60
FLUSH_BYTES = 512 << 20
COPY_BYTES = 1 << 30


def stand_in_for_test_modules() -> None:
    """The two modules of SGLang that the kernel tests import beside ours."""
    utils = types.ModuleType("sglang.test.test_utils")
    utils.CustomTestCase = unittest.TestCase
    register = types.ModuleType("sglang.test.ci.ci_register")
    register.register_cpu_ci = register.register_cuda_ci = lambda **_: None
    for module in (types.ModuleType("sglang.test.ci"), utils, register):
        sys.modules[module.__name__] = module


def check() -> dict[str, Any]:
    """Run the CUDA cases; counts and the text of what failed."""
    suite = unittest.TestSuite()
    for module_name, classes in TEST_CLASSES.items():
        module = importlib.import_module(module_name)
        for name in classes:
            case = getattr(module, name)
            suite.addTests(unittest.defaultTestLoader.loadTestsFromTestCase(case))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = [*result.failures, *result.errors]
    return {
        "run": result.testsRun,
        "failed": {str(case): trace for case, trace in failed},
        "skipped": {str(case): reason for case, reason in result.skipped},
    }


def graph_of(step: Callable[[], object]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def timed(step: Callable[[], object], flush: torch.Tensor) -> dict[str, float]:
    """Microseconds of a captured step with a cold L2: median, 10th, 90th percentile."""
    graph = graph_of(step)
    marks = []
    for _ in range(REPEATS):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(end) * 1e3 for start, end in marks)
    deciles = statistics.quantiles(times, n=10)
    return {"median_us": statistics.median(times), "p10": deciles[0], "p90": deciles[8]}


def copy_rate(flush: torch.Tensor) -> float:
    """Bytes a second of a device-to-device copy, read and written."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    time = timed(lambda: target.copy_(source), flush)
    return 2 * COPY_BYTES / (time["median_us"] * 1e-6)


def time_shape(
    op: Any, rows: int, width: int, ranks: int, copy: float, flush: torch.Tensor
) -> dict[str, Any]:
    """Local reduction, merge, both, and argmax of the gathered FP32 rows."""
    logits = torch.randn(rows, width, device="cuda").bfloat16()
    gathered_logits = torch.randn(rows, width * ranks, device="cuda")
    draft_tokens = torch.zeros(rows, 4, dtype=torch.int64, device="cuda")
    positions = torch.zeros(rows, dtype=torch.int64, device="cuda")

    def local():
        return op.shard_winner(logits, valid_width=width, vocab_start=0)

    gathered_words = local().repeat(max(ranks, 2), 1)

    def merge():
        return op.merge_shard_winners(
            gathered_words,
            rows=rows,
            vocab_size=width,
            draft_tokens=draft_tokens,
            column=1,
            positions=positions,
        )

    times = {
        "local": timed(local, flush),
        "merge": timed(merge, flush),
        "local_and_merge": timed(lambda: (local(), merge()), flush),
        "gathered_argmax": timed(lambda: gathered_logits.argmax(dim=-1), flush),
    }
    read = logits.numel() * logits.element_size()
    rate = read / (times["local"]["median_us"] * 1e-6)
    shape = {"rows": rows, "width": width, "ranks": ranks, "dtype": "bf16"}
    return {
        **shape,
        **times,
        "local_bytes_per_s": rate,
        "local_share_of_copy_rate": rate / copy,
    }


def time_all() -> dict[str, Any]:
    op = importlib.import_module("sglang.kernels.ops.speculative.shard_winner")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    one = torch.zeros(1, device="cuda")
    copy = copy_rate(flush)
    shapes = []
    for width, ranks in RANKS_OF_WIDTH.items():
        for rows in ROWS:
            shapes.append(shape := time_shape(op, rows, width, ranks, copy, flush))
            medians = "  ".join(
                f"{name} {shape[name]['median_us']:.1f} us"
                for name in ("local", "merge", "local_and_merge", "gathered_argmax")
            )
            share = shape["local_share_of_copy_rate"]
            print(f"{width:>6} x {rows:<3} {medians}  {share:.0%} of copy", flush=True)
    return {
        "copy_bytes_per_s": copy,
        # What a graph of one tiny kernel takes: part of every time below.
        "one_tiny_kernel": timed(lambda: one.add_(1), flush),
        "shapes": shapes,
    }


def hardware() -> dict[str, Any]:
    card = torch.cuda.get_device_properties(0)
    return {
        "name": card.name,
        "capability": f"{card.major}.{card.minor}",
        "multiprocessors": card.multi_processor_count,
        "memory_bytes": card.total_memory,
        "host": platform.machine(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT / "build/gpu_check.json"
    parser.add_argument("--output", type=Path, default=default)
    parser.add_argument("--no-timing", action="store_true", help="cases only")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_check: no CUDA device; run it on a machine with one")
    use_bare_sglang()
    stand_in_for_test_modules()
    results = {"hardware": hardware(), "cases": check()}
    if not options.no_timing:
        results["timing"] = time_all()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{results['hardware']['name']}: {options.output}")
    if failed := results["cases"]["failed"]:
        sys.exit(f"gpu_check: {len(failed)} cases failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
