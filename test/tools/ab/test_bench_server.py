"""The benchmark's entry to the kit."""

from __future__ import annotations

import importlib.util

from scripts.ab.__main__ import parse_args
from scripts.serving.cpu_engine import ROOT


def test_it_is_the_kit_with_the_small_profile() -> None:
    """Red when the entry serves something else, or an option of the caller is lost."""
    path = ROOT / "benchmark" / "vocab_parallel_draft" / "bench_server.py"
    spec = importlib.util.spec_from_file_location("bench_server", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    args = parse_args(module.arguments(["--quick", "--pairs", "2", "--null"]))
    assert args.profile == "cpu-small" and args.out == ROOT / "build/bench/server"
    assert args.pairs == 2 and args.null and args.concurrency == [1, 8]
    assert parse_args(module.arguments([])).pairs is None
