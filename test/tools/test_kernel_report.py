"""The kernel report: what it reads from a binary, and when it fails."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/kernel_report.py"

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def report():
    spec = importlib.util.spec_from_file_location("kernel_report", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def variant(report):
    return report.shard_variant("bf16", torch.bfloat16, False, 8, True)


def test_the_longest_kernel_does_not_spill(report, variant):
    # Red if the kernel outgrows the registers of a thread on either architecture.
    for arch in report.ARCHES:
        row = report.measure(variant, arch)
        assert row["arch"] == f"sm_{arch}" and row["spills"] == 0
        assert 32 < row["registers"] <= 255 and row["shared_bytes"] > 0


def test_spills_are_seen(report, variant):
    # Red if the report reads the wrong figure: with 24 registers a thread must spill.
    assert report.measure(variant, 90, maxnreg=24)["spills"] > 0


def test_every_launch_has_its_variant(report):
    # Red if a dtype, a group size or a number of ranks is left out of the report.
    names = [variant.name for variant in report.shard_variants()]
    names += [variant.name for variant in report.merge_variants()]
    assert len(set(names)) == len(names)
    for dtype in ("bf16", "fp16", "fp32"):
        for count in (1, 2, 4, 8):
            assert f"shard_kernel[{dtype},plain,count={count}]" in names
            assert f"shard_kernel[{dtype},softcap,count={count},unaligned]" in names
    # A draft loop has a token buffer or not; a draft extend advances nothing either.
    for written in ("", ",positions", ",draft_tokens,positions"):
        assert f"merge_kernel[tp=4{written}]" in names


def test_a_spill_fails_the_report(report, monkeypatch, tmp_path):
    # Red if the command ends well, or writes nothing, when a kernel spills.
    row = {"arch": "sm_90", "registers": 255, "spills": 8, "shared_bytes": 0}
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(
        report, "measure", lambda variant, arch: {"kernel": variant.name, **row}
    )
    with pytest.raises(SystemExit, match="these kernels spill: shard_kernel"):
        report.main()
    rows = json.loads((tmp_path / "build/kernel_report.json").read_text())
    assert rows[0].keys() == {"kernel", *row}
