"""The benchmark that writes the table of `auto`, on two gloo ranks."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sglang.srt.layers.vocab_parallel_draft_table import Times, read_table

BENCH = Path(__file__).resolve().parents[2] / "benchmark/vocab_parallel_draft"
sys.path.insert(0, str(BENCH))

import bench_transport as bench  # noqa: E402

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
FEW = ["--device", "cpu", "--rows", "3", "1", "--seconds", "0.02", "--vocab", "2048"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The table's path and what the benchmark printed."""
    path = tmp_path_factory.mktemp("bench") / "table.json"
    script = [str(BENCH / "bench_transport.py"), *FEW, "--output", str(path)]
    command = [*LAUNCH, "--nproc-per-node", "2", *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return path, done.stdout


def test_real_ranks_write_a_table_that_auto_can_read(written):
    # Red if the benchmark and the server part ways over the schema or the setting.
    path, output = written
    (measurement,) = read_table(str(path)).measurements
    setting = measurement.setting
    assert (setting.transport, setting.world_size) == ("gloo", 2)
    assert (setting.dtype, setting.width) == ("bfloat16", 1024)
    assert [times.rows for times in measurement.rows] == [1, 3]
    assert all(times.exchange_us.median > 0 for times in measurement.rows)
    assert measurement.versions["torch"] and str(setting) in output


def test_a_table_keeps_other_settings_and_replaces_its_own(written):
    # Red if a run forgets what was measured before, or a setting is there twice.
    path, _ = written
    (old,) = read_table(str(path)).measurements
    wider = msgspec.structs.replace(
        old, setting=msgspec.structs.replace(old.setting, width=4096)
    )
    assert bench.merged(path, [wider]).measurements == [old, wider]
    row = msgspec.structs.replace(old.rows[0], packed_us=Times(2.0, 1.0, 3.0))
    again = msgspec.structs.replace(old, rows=[row])
    assert bench.merged(path, [again]).measurements == [again]
    assert bench.merged(path.with_name("new.json"), [old]).measurements == [old]


def test_without_torchrun_it_says_how(monkeypatch):
    # Red if one process measures a group of one, or waits for others.
    for world_size in (None, "1"):
        for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, "0")
        if world_size is None:
            monkeypatch.delenv("WORLD_SIZE", raising=False)
        else:
            monkeypatch.setenv("WORLD_SIZE", world_size)
        with pytest.raises(SystemExit, match="start it with torchrun"):
            bench.rank_of_torchrun()
