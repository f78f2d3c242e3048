"""The description of the pull request: made from records only."""

import json
import re

from prepare_pr.tables import Table
from pull_request import RESULTS, prepare


def test_every_figure_of_the_description_is_in_a_record(shop, tmp_path):
    """Red when a figure is written into the tool, or a record's is not shown."""
    code, output, text = prepare(shop, tmp_path / "tree")
    assert code == 0, output
    table = "| rows | ms |\n| --- | --- |\n| 8 | 31.25 |"
    whole = f"**A step**\n\nWarm.\n\n{table}\n\nWithin the noise.\n\nSource: "
    assert f"On a machine, once.\n\n{whole}`benchmark/vpd/results-cpu.md`" in text
    assert "`benchmark/vpd/results-cpu.md`, lines 12 to 20 (sha256 " in text
    assert "nothing here was measured on a GPU" in text
    assert "- [ ] Provide accuracy and speed" in text
    speed = text.split("## Speed")[1].split("## Checklist")[0]
    changed = RESULTS.replace("31.25", "62.5")
    shop.write("benchmark/vpd/results-cpu.md", changed)
    second = prepare(shop, tmp_path / "second")[2]
    again = second.split("## Speed")[1].split("## Checklist")[0]
    assert "62.5" in again and "31.25" not in again
    digest = re.compile(r"sha256 \w+")
    first = digest.sub("", speed).replace("31.25", "")
    assert first == digest.sub("", again).replace("62.5", "")


def test_what_a_reviewer_reads_apart(shop, tmp_path):
    """Red when lines of tests are counted as the package's, in either layout."""
    text = prepare(shop, tmp_path / "tree")[2]
    assert "the package: 3 files, +5 -0 lines;" in text
    assert "tests and their kits: 2 files, +4 -0 lines;" in text
    assert "documentation and benchmark: 2 files, +" in text


def test_what_a_later_run_has_overtaken_is_left_out(shop, tmp_path):
    """Red when an old figure is shown beside the new one, or a build folder's, which may
    be of any commit."""
    shop.write("build/demo/report.json", json.dumps(comparison(model="left there")))
    text = prepare(shop, tmp_path / "tree")[2]
    assert "31.25" in text
    assert "99.75" not in text and "left there" not in text


def test_a_long_table_is_folded():
    """Red when a reader has to scroll past every size, or a short table is hidden."""
    head, row = ["| a |", "| --- |"], "| 1 |"
    for count, folds in ((12, False), (13, True)):
        table = Table([*head, *[row] * count], "Context.", "there").markdown()
        assert ("<summary>13 rows</summary>\n\n| a |" in table) is folds
        assert table.count(row) == count


def test_families_and_policies_are_shown(shop, tmp_path):
    """Red when a family that drafts densely is given bytes, or unequal outputs of the
    policies are not said."""
    row = {
        "family": "eagle",
        "layout": "TP 2",
        "reason": None,
        "accept_length": 2.345,
        "dense_bytes_per_step": 8060.4,
        "packed_bytes_per_step": 96.0,
    }
    dense = row | {"family": "x", "reason": "topk", "packed_bytes_per_step": None}
    shop.write("docs/families.json", json.dumps([row, dense]))
    speed = {"median": 2.0, "min": 1.0, "max": 3.0}
    arm = {"verified_tokens": 1427.0, "output_tok_per_s_spread": speed}
    policy = {name: dict(arm) for name in ("fixed", "none", "without", "with")}
    policy["none"]["verified_tokens"] = None
    policy["outputs_identical"] = False
    kept = {"policy": policy, "tp": 2, "num_steps": 7, "sglang_version": "1"}
    kept["hardware"] = {"cpu": "c", "cores": 2}
    shop.write("benchmark/vpd/records/calibration.json", json.dumps(kept))
    text = prepare(shop, tmp_path / "tree")[2]
    accuracy, speed = text.split("## Accuracy")[1].split("## Speed")
    assert "| eagle | TP 2 | 2.35 | 8060 | 96 |" in accuracy
    assert "| x | TP 2 | 2.35 | 8060 | topk |" in accuracy
    assert "| 7 drafts every time | 1427 | 2.0 (1.0 to 3.0) |" in speed
    assert "| no speculation |  | 2.0 (1.0 to 3.0) |" in speed
    assert "Outputs identical under all: **no**." in speed


def comparison(**more):
    arm = {
        "output_tok_per_s_by_concurrency": {"8": {"median": 1, "min": 0.5, "max": 2}},
        "draft_collective_bytes_per_token": 48,
        "draft_collectives_per_step": 1.0,
        "peak_rss_mib": 100,
        "accept_length": 2.3,
        "request_errors": 0,
    }
    record = {
        "arms": {"dense": arm, "packed": {**arm, "accept_length": 2.5}},
        "model": "m",
        "tp": 4,
        "num_steps": 3,
        "vocab_size": 7,
        "sglang_version": "1.2.3",
        "outputs_identical": False,
        "requests_compared": 28,
        "requests_differing": [3, 5],
        "hardware": {"cpu": "c", "cores": 2},
    }
    return record | more


def test_a_difference_between_the_arms_is_shown(shop, tmp_path):
    """Red when unequal outputs or accept lengths are left out of the description."""
    record = shop.write("demo.json", json.dumps(comparison()))
    text = prepare(shop, tmp_path / "tree", "--record", record)[2]
    accuracy = text.split("## Accuracy")[1].split("## Speed")[0]
    assert "| outputs identical | **no** |" in accuracy
    assert "| requests compared, differing | 28, 2 |" in accuracy
    assert "2.300, 2.500" in accuracy
    assert "| output tokens/s, 8 in flight | 1.0 (0.5 to 2.0)" in text
    record.write_text(json.dumps(comparison(arms={"dense": {}, "packed": {}})))
    code, output, _ = prepare(shop, tmp_path / "second", "--record", record)
    assert code == 1 and "demo.json: the record has no 'accept_length'" in output
    assert not (tmp_path / "second").exists()


def test_a_gpu_record_ticks_the_box(shop, tmp_path):
    """Red when the description says "CPU only" beside GPU results, or ticks without."""
    machine = {"cpu": "c", "cores": 2, "gpu": "A fast one"}
    record = tmp_path / "gpu.json"
    record.write_text(json.dumps(comparison(hardware=machine)))
    text = prepare(shop, tmp_path / "tree", "--record", record)[2]
    assert "- [x] Provide accuracy and speed" in text
    assert "nothing here was measured" not in text and "A fast one" in text
