"""The GPU benchmarks as far as they run without one: their steps, and what they say."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "benchmark/vocab_parallel_draft"
sys.path.insert(0, str(BENCH))

import bench_shard_winner as bench  # noqa: E402
import run_all  # noqa: E402


@pytest.fixture
def shape():
    def topk1(logits, positions, tokens, column):
        return torch.ones(len(logits), 1), logits.argmax(dim=-1, keepdim=True)

    torch.manual_seed(0)
    ops = bench.load_ops()._replace(topk1=topk1)
    return bench.Shape(ops, rows=3, width=640, ranks=4, device="cpu")


def test_both_steps_choose_the_same_logit(shape):
    # Red if one of the steps that are compared leaves out part of the selection.
    winners = shape.logits.float().amax(dim=-1)
    dense_ids = shape.dense_step()[1].flatten() % shape.width
    packed_ids, values, _ = shape.packed_step()
    assert torch.equal(values, winners)
    assert torch.equal(shape.logits.float()[range(3), dense_ids], winners)
    assert torch.equal(shape.logits.float()[range(3), packed_ids], winners)
    assert torch.equal(shape.tokens[:, 1], packed_ids)


def test_what_is_measured(shape, monkeypatch):
    # Red if a comparison or the memory is left out, or bandwidth is not read bytes.
    monkeypatch.setattr(
        bench.gpu, "timed", lambda step, _: {"median_us": 2.0, **_ran(step)}
    )
    monkeypatch.setattr(bench.gpu, "peak_bytes", _ran)
    found = bench.measure_shape(shape, 1e9, None)
    assert set(bench.TIMED) <= set(found)
    assert set(found["memory"]) == {"dense", "packed"}
    assert found["local_bytes_per_s"] == pytest.approx(3 * 640 * 2 / 2e-6)
    assert found["local_share_of_copy_rate"] == pytest.approx(1.92)


def _ran(step):
    step()
    return {}


def test_without_sglang_its_kernel_is_left_out(shape, monkeypatch):
    # Red if the bare machine needs SGLang, or reports a time for a kernel it lacks.
    shape.ops = shape.ops._replace(topk1=None)
    monkeypatch.setattr(
        bench.gpu, "timed", lambda step, _: {"median_us": 2.0, **_ran(step)}
    )
    monkeypatch.setattr(bench.gpu, "peak_bytes", _ran)
    assert "dense_topk1" not in bench.measure_shape(shape, 1e9, None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_one_clear_error():
    # Red if it fails with a traceback, or times a CPU.
    command = [sys.executable, str(BENCH / "bench_shard_winner.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("bench_shard_winner: no CUDA device")
    assert "Traceback" not in done.stderr


def test_what_a_machine_can_run():
    # Red if a benchmark is skipped without a reason, or run where it cannot.
    for gpus, skipped in ((0, 2), (1, 1), (2, 0), (8, 0)):
        chosen = run_all.benchmarks(gpus)
        assert sum(b.skipped is not None for b in chosen) == skipped
        assert all("GPU" in b.skipped for b in chosen if b.skipped)
    assert "4" in run_all.benchmarks(6)[3].command
