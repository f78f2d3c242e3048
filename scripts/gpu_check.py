"""Check and time the Triton kernels on a bare GPU machine: torch and Triton only.

``python scripts/gpu_check.py`` runs the registered kernel tests that need CUDA, then the
timing of ``benchmark/vocab_parallel_draft/bench_shard_winner.py``. It writes one file,
``build/gpu_check.json``, that names the hardware, and fails when a case does.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import types
import unittest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("scripts", "test/registered/kernels", "benchmark/vocab_parallel_draft")
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]

import torch  # noqa: E402

import bench_shard_winner  # noqa: E402
import gpu_timing  # noqa: E402
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
    results = {"hardware": gpu_timing.hardware(), "cases": check()}
    if not options.no_timing:
        results["timing"] = bench_shard_winner.time_all()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"{results['hardware']['name']}: {options.output}")
    if failed := results["cases"]["failed"]:
        sys.exit(f"gpu_check: {len(failed)} cases failed: " + ", ".join(failed))


if __name__ == "__main__":
    main()
