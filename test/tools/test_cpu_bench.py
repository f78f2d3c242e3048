"""The CPU benchmarks run, small: nothing else would notice that one no longer does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "benchmark/vocab_parallel_draft"
sys.path.insert(0, str(BENCH))

import logsumexp_word_ranks as two_words  # noqa: E402
from selection_steps import Case, random_shard  # noqa: E402

from sglang.kernels.ops.speculative import shard_winner_few_rows  # noqa: E402
from sglang.kernels.ops.speculative.shard_winner import (  # noqa: E402
    merge_shard_winners,
    shard_winner,
)


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


@pytest.mark.parametrize("rows", [1, shard_winner_few_rows.MOST_ROWS, 8])
def test_two_words_are_those_of_the_implementation_for_so_many_rows(rows, monkeypatch):
    # Red if the arms of a case run different implementations, so that their ratio is
    # not the log-sum-exp's, or the words or their merge differ in more than that.
    calls = []
    reduce_tile = two_words.reduction._winner
    monkeypatch.setattr(
        two_words.reduction, "_winner", lambda *a: calls.append(a) or reduce_tile(*a)
    )
    shards = [
        random_shard(rank, 2, Case(rows, 2000, "bfloat16"), "cpu") for rank in (0, 1)
    ]
    three = torch.cat(
        [
            shard_winner(s.logits, valid_width=s.valid_width, vocab_start=s.start)
            for s in shards
        ]
    )
    general, calls[:] = len(calls), []
    two = torch.cat([two_words.two_words(shard, rows) for shard in shards])
    assert (
        len(calls) == general == (0 if rows <= shard_winner_few_rows.MOST_ROWS else 2)
    )
    kept = three.unflatten(0, (-1, 3))[:, ::2].flatten(0, 1)
    assert torch.equal(two.view(torch.int32), kept.contiguous().view(torch.int32))
    ids = two_words.merge_two_words(two, rows, 1999)
    assert torch.equal(ids, merge_shard_winners(three, rows=rows, vocab_size=2000)[0])
