"""`make ab` with the real server and SGLang's own client, as small as it gets."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.ab.__main__ import main
from scripts.small_model.folder import write_model
from scripts.small_model.serve import SMALL


def test_dense_and_packed_end_to_end(tmp_path: Path) -> None:
    """Red when the pinned server or client no longer gives what the kit reads: lengths,
    latencies, the draft path, accept lengths, memory; or when the arms differ in what
    they answer. One pair: two server starts, the second one in a resumed call."""
    model = write_model(SMALL, tmp_path / "model")
    sizes = ["--model-path", str(model), "--tp", "2", "--pairs", "1"]
    load = ["--concurrency", "2", "--requests", "4"]
    argv = ["cpu-small", *sizes, *load, "--out", str(tmp_path / "ab")]
    assert main([*argv, "--stop-after", "1"]) == 0
    assert main(argv) == 0
    report = json.loads((tmp_path / "ab" / "report.json").read_text())
    assert report["complete"] and report["comparable"]
    assert report["verdict"].startswith("No difference shown")
    dense, packed = report["by_side"]["dense"], report["by_side"]["packed"]
    assert [path["path"] for path in packed["draft_path"]] == ["packed"]
    assert all(path["path"] != "packed" for path in dense["draft_path"])
    assert report["outputs"]["compared"] == 8
    assert report["outputs"]["differing"] == [] and report["outputs"]["failed"] == 0
    for side in (dense, packed):
        assert 1.5 <= side["accept_length_check"] <= 3.5
        assert 1.0 <= side["accept_length_load"]["median"] <= 4.0
        assert 0 < side["memory_ready_mib"]["min"] <= side["memory_peak_mib"]["max"]
    (point,) = report["points"]
    for side in report["sides"]:
        (name,) = point["records"][side]
        result = json.loads((tmp_path / "ab" / name).read_text())["result"]
        assert (result["completed"], result["errors"]) == (4, 0)
        assert result["output_tokens"] == 4 * 32
        assert 0 < result["ttft_ms"]["median"] < result["e2e_ms"]["median"]
        assert 0 < result["tpot_ms"]["median"] and result["output_tok_per_s"] > 0
    page = (tmp_path / "ab" / "report.html").read_text()
    assert report["verdict"] in page and page.count("<svg") == 5
