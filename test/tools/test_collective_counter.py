"""Arithmetic, attribution and files of the collective counter."""

from __future__ import annotations

import functools
import inspect
import os
import pkgutil
import socket
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from collective_counter import draft_figures, plugin, read_counters, subtract
from collective_counter.table import RankTable
from collective_counter.targets import GPU_TARGETS, TORCH_TARGETS, Target
from collective_counter.tracker import Tracker, rows_of_call

WIDTH = 512  # columns of a rank's head output


def tracker(folder: Path, rank: int = 0) -> Tracker:
    return Tracker(folder, lambda: rank)


def gather(t: Tracker, shape: tuple[int, ...], nbytes: int) -> None:
    with t.collective("all_gather") as record:
        record(nbytes, shape)


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((5, WIDTH), 5),  # dense
        ((3, WIDTH), 3),  # dense, as many rows as a packed payload has words
        ((3, 8), 8),  # packed, 5 to 8 rows
        ((3, 4), 4),  # packed, one to four rows
        ((9, 4), 4),  # packed, four candidates a row
        ((12,), 0),
    ],
)
def test_rows_of_call(shape: tuple[int, ...], rows: int) -> None:
    """Red when a word-major payload is read row-major, or a dense one the reverse."""
    assert rows_of_call(shape, WIDTH) == rows


def test_scopes(tmp_path: Path) -> None:
    """Red when a collective before the head, of the target or of the layers is taken
    for a draft's vocabulary collective."""
    t = tracker(tmp_path)
    gather(t, (4, 64), 1)
    with t.logits("target_logits"):
        t.head(4, WIDTH)
        gather(t, (4, WIDTH), 10)
    with t.logits("draft_logits"):
        gather(t, (4, 64), 100)
        t.head(2, WIDTH)
        gather(t, (3, 4), 1000)
    gather(t, (4, 64), 1)
    (rank,) = read_counters(tmp_path)
    sizes = [rank.get(s, "all_gather", "output_bytes") for s in _SCOPES]
    assert sizes == [1000, 10, 102]
    assert [rank.get(s, "all_gather") for s in _SCOPES] == [1, 1, 3]
    figures = draft_figures([rank])
    assert (figures.steps, figures.collectives, figures.head_rows) == (1, 1, 2)
    assert figures.bytes_per_token == 250 and figures.bytes_per_real_row == 500


_SCOPES = ("draft_logits", "target_logits", "other")


def test_nested_calls_count_once(tmp_path: Path) -> None:
    """Red when a call that passes through two hooked levels counts twice, or when an
    exception leaves the guard closed."""
    t = tracker(tmp_path)
    with t.collective("object") as outer:
        with t.collective("broadcast") as inner:
            assert inner is None
        outer(7, None)
    with pytest.raises(RuntimeError), t.collective("all_gather"):
        raise RuntimeError
    gather(t, (4, 64), 1)
    (rank,) = read_counters(tmp_path)
    assert rank.calls("other") == {"object": 1, "all_gather": 1}


def test_other_kinds_in_a_draft_step_are_seen(tmp_path: Path) -> None:
    """Red when a step could add an all-reduce unnoticed."""
    t = tracker(tmp_path)
    with t.logits("draft_logits"):
        t.head(1, WIDTH)
        gather(t, (3, 4), 192)
        with t.collective("all_reduce") as record:
            record(4, (1,))
    figures = draft_figures(read_counters(tmp_path))
    assert figures.collectives_per_step == 2
    assert figures.output_bytes == 192


def test_no_steps(tmp_path: Path) -> None:
    """Red when a phase without drafts divides by zero or reports 0 bytes a token."""
    gather(tracker(tmp_path), (4, 64), 1)
    figures = draft_figures(read_counters(tmp_path))
    assert figures.collectives_per_step is None
    assert figures.bytes_per_token is None


def test_empty_batches_are_no_steps(tmp_path: Path) -> None:
    """Red when an idle rank's empty head call counts as a draft step."""
    t = tracker(tmp_path)
    with t.logits("draft_logits"):
        t.head(0, WIDTH)
        gather(t, (3, 0), 0)
    assert draft_figures(read_counters(tmp_path)).steps == 0


def test_difference_of_snapshots(tmp_path: Path) -> None:
    """Red when earlier work leaks into a phase, or ranks that disagree go unnoticed."""
    tables = [RankTable(tmp_path, rank, pid=10 + rank) for rank in range(2)]
    for table in tables:
        table.add_head(0, 4)
        table.add_collective(0, 0, 400, 4)
    before = read_counters(tmp_path)
    for table in tables:
        table.add_head(0, 2)
        table.add_collective(0, 0, 96, 4)
    figures = draft_figures(subtract(read_counters(tmp_path), before))
    assert figures.ranks_agree
    assert (figures.output_bytes, figures.rows, figures.head_rows) == (96, 4, 2)
    tables[1].add_collective(0, 0, 96, 4)
    assert not draft_figures(subtract(read_counters(tmp_path), before)).ranks_agree


def test_difference_over_a_restart(tmp_path: Path) -> None:
    """Red when counters of two servers are subtracted from each other."""
    RankTable(tmp_path, 0, pid=1)
    before = read_counters(tmp_path)
    RankTable(tmp_path, 0, pid=2)
    with pytest.raises(ValueError, match="other processes"):
        subtract(read_counters(tmp_path), before)


def test_bad_files(tmp_path: Path) -> None:
    """Red when a missing or foreign file reads as zeros."""
    with pytest.raises(FileNotFoundError, match="plugin"):
        read_counters(tmp_path)
    np.zeros(3, dtype=np.int64).tofile(tmp_path / "rank0.bin")
    with pytest.raises(ValueError, match="rank0.bin"):
        read_counters(tmp_path)


@pytest.mark.parametrize(
    "target", TORCH_TARGETS + GPU_TARGETS, ids=lambda target: target.path
)
def test_targets_match_signatures(target: Target) -> None:
    """Red when a collective is renamed or its arguments move: it would go uncounted."""
    try:
        function = pkgutil.resolve_name(target.path)
    except ImportError as error:
        pytest.skip(f"not importable on this host: {error}")
    names = list(inspect.signature(function).parameters)
    for place in (target.output, target.input):
        if isinstance(place, tuple):
            position, name = place
            assert names[position] == name


def test_entry_point() -> None:
    """Red when SGLang would not find the plugin in this folder."""
    (entry,) = entry_points(group="sglang.srt.plugins", name="collective_counter")
    assert entry.load() is plugin.register


def test_off_without_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when the plugin hooks anything without being asked."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    monkeypatch.delenv(plugin.ENV_DIR, raising=False)
    before = {path: len(hooks) for path, hooks in HookRegistry._hooks.items()}
    plugin.register()
    after = {path: len(hooks) for path, hooks in HookRegistry._hooks.items()}
    assert after == before


def _count_on_gloo(rank: int, port: int, folder: Path) -> None:
    """One of two ranks: hooked torch collectives, with and without keywords."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    t = Tracker(folder, dist.get_rank)
    for target in TORCH_TARGETS:
        hook = plugin._counting(t, target)
        name = target.path.removeprefix("torch.distributed.")
        setattr(dist, name, functools.partial(hook, getattr(dist, name)))
    row = torch.full((3, 4), float(rank))
    out = torch.empty(6, 4)
    with t.logits("draft_logits"):
        t.head(2, WIDTH)
        dist.all_gather_into_tensor(out, row)
        dist.all_gather_into_tensor(output_tensor=out, input_tensor=row)
        dist.all_gather([torch.empty(3, 4), torch.empty(3, 4)], row)
    dist.all_reduce(row)
    dist.all_gather_object([None, None], {"rank": rank})
    assert out[5, 0] == 1.0
    dist.destroy_process_group()


def test_counts_real_collectives(tmp_path: Path) -> None:
    """Red when output bytes are taken from the input, or an object gather counts its
    inner tensors too."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(port), str(tmp_path)]
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    counters = read_counters(tmp_path)
    figures = draft_figures(counters)
    assert figures.ranks_agree and figures.collectives == 3
    assert figures.output_bytes == 3 * 2 * 3 * 4 * 4 and figures.rows == 3 * 4
    assert counters[1].calls("other") == {"all_reduce": 1, "object": 1}


if __name__ == "__main__":
    _count_on_gloo(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
