"""The CPU benchmarks run, small: nothing else would notice that one no longer does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "benchmark/vocab_parallel_draft"


def run(script: str, *options: str) -> str:
    command = [sys.executable, str(BENCH / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "script, options, columns",
    [
        ("bench_workspace.py", ["--rounds", "1"], "| 8 |"),
        ("bench_few_rows.py", ["--rounds", "2", "--block", "1"], "| 512 | 8 |"),
    ],
)
def test_a_table_of_one_case(script, options, columns):
    # Red if what a script patches, imports or calls was renamed.
    table = run(script, "--rows", "8", "--width", "512", "--ranks", "2", *options)
    assert f"\n{columns}" in table


def test_the_word_of_the_log_sum_exp(tmp_path):
    # Red if what it takes from the reduction was renamed, or its arms choose other ids.
    size = ["--tp", "2", "--vocab", "2000", "--rows", "1", "--seconds", "0.1"]
    output = tmp_path / "word.json"
    run("bench_logsumexp_word.py", *size, "--output", str(output))
    assert output.stat().st_size > 0


def test_the_sampling_layer_writes_its_report(tmp_path):
    # Red if an arm cannot run, or the report lacks its spread or memory.
    size = ["--tp", "2", "--vocab", "32000", "--rows", "1", "--seconds", "0.1"]
    run("bench_sampling_layer.py", *size, "--output", str(tmp_path))
    (result,) = json.loads((tmp_path / "sampling-layer-tp2.json").read_text())[
        "results"
    ]
    assert 0 < result["ratio"]["p10"] <= result["ratio"]["median"]
    assert result["packed_peak_mib"] > 0
    assert (tmp_path / "sampling-layer-tp2.md").stat().st_size > 0
