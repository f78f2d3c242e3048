"""The pull request: commits on a tree, and a description made from records only."""

import json
import re
import subprocess

import pytest
from prepare_pr.checkout import BRANCH
from prepare_pr.cli import main
from prepare_pr.docs import first_table
from prepare_pr.stack import make_stack

PAGE = """\
---
title: A page
---
| Value | Meaning |
| --- | --- |
| `off` (default) | Nothing. |
| `on` | Something. |

@table docs/fallback-reasons.md
"""
RESULTS = """\
# Results

On a machine,
once.

| rows | ms |
| --- | --- |
| 8 | 31.25 |
"""
ROW = """\
    <tr>
      <td a>`--speculative-eagle-topk`</td>
      <td b>Branches.</td>
      <td c>`None`</td>
      <td d>Type: int</td>
    </tr>
"""
IMPORTS = """\
from sglang.kernels.ops.speculative.k import k

__all__ = ["k"]
"""
TEST = """\
from sglang.test.ci.ci_register import register_cpu_ci

register_cpu_ci(est_time=3, suite="s")
"""
EDITED = "srt/layers/m.py"


@pytest.fixture
def shop(workshop):
    workshop.upstream({EDITED: "x = 1\n", "srt/layers/other.py": ""})
    place = {"anchor": {"assigns": "x"}, "op": "after"}
    workshop.edit(EDITED, **place, insert="y = 2", why="Because y.")
    workshop.edit(EDITED, **place, insert="engine = 1", engine="cpu")
    write = workshop.write
    write("python/sglang/kernels/ops/speculative/k.py", "k = 1\n")
    write("python/sglang/srt/layers/n.py", IMPORTS)
    write("test/registered/spec/test_n.py", TEST)
    write("benchmark/vpd/bench.py", "print(1)\n")
    write("benchmark/vpd/results-cpu.md", RESULTS)
    write("docs/fallback-reasons.md", "Text.\n\n| why | what |\n| --- | --- |\n")
    write("docs/upstream/vocab_parallel_draft.mdx", PAGE)
    assert workshop.run("lock")[0] == 0
    return workshop


def prepare(shop, tree, *arguments):
    """Exit code, output and description of one run on `tree`."""
    shop.capsys.readouterr()
    code = main(["--root", str(shop.root), "--tree", str(tree), *map(str, arguments)])
    captured = shop.capsys.readouterr()
    path = shop.root / "build/pr/description.md"
    text = path.read_text() if path.exists() else ""
    return code, captured.out + captured.err, text


def git(tree, *arguments):
    command = ["git", "-C", tree, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_tree_is_made_from_the_wheel_and_gets_the_stack(shop, tmp_path):
    """Red when a file is left out, goes into a wrong commit, or the engine's edit in."""
    tree = tmp_path / "tree"
    code, output, _ = prepare(shop, tree)
    assert code == 0, output
    names = git(tree, "log", "--reverse", "--format=%s", "--name-only", "main..")
    kernels, eagle, docs = re.split(r"\n(?=Draft|Vocab)", names)
    assert kernels.split("\n\n")[1].split() == [
        "python/sglang/kernels/ops/speculative/k.py"
    ]
    assert eagle.split("\n\n")[1].split() == [
        "python/sglang/srt/layers/m.py",
        "python/sglang/srt/layers/n.py",
        "test/registered/spec/test_n.py",
    ]
    assert docs.split("\n\n")[1].split() == [
        "benchmark/vpd/bench.py",
        "docs_new/docs/advanced_features/vocab_parallel_draft.mdx",
    ]
    assert (tree / "python/sglang" / EDITED).read_text() == "x = 1\ny = 2\n"
    assert git(tree, "status", "--porcelain") == ""
    assert git(tree, "branch", "--show-current").strip() == BRANCH


def test_the_layout_of_the_wheel_is_one_folder_up(shop, tmp_path):
    """Red when a tree whose package is not under python/ gets files in two places."""
    shop.build()
    (pristine,) = (shop.root / "build/pristine").glob("*/sglang")
    tree = tmp_path / "tree"
    tree.mkdir()
    subprocess.run(["cp", "-r", pristine, tree / "sglang"], check=True)
    code, output, _ = prepare(shop, tree)
    assert code == 0, output
    assert not (tree / "python").exists()
    assert (tree / "sglang" / EDITED).read_text() == "x = 1\ny = 2\n"
    assert (tree / "sglang/kernels/ops/speculative/k.py").exists()
    assert (tree / "test/registered/spec/test_n.py").exists()


def test_every_figure_of_the_description_is_in_a_record(shop, tmp_path):
    """Red when a figure is written into the tool, or a record's is not shown."""
    code, output, text = prepare(shop, tmp_path / "tree")
    assert code == 0, output
    assert "On a machine, once.\n\n| rows | ms |\n| --- | --- |\n| 8 | 31.25 |" in text
    assert "`benchmark/vpd/results-cpu.md`, lines 6 to 8 (sha256 " in text
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
        "hardware": {"cpu": "c", "cores": 2},
    }
    return record | more


def test_a_difference_between_the_arms_is_shown(shop, tmp_path):
    """Red when unequal outputs or accept lengths are left out of the description."""
    record = shop.write("build/demo/report.json", json.dumps(comparison()))
    text = prepare(shop, tmp_path / "tree")[2]
    accuracy = text.split("## Accuracy")[1].split("## Speed")[0]
    assert "| outputs identical | **no** |" in accuracy
    assert "2.300, 2.500" in accuracy
    assert "| output tokens/s, 8 in flight | 1.0 (0.5 to 2.0)" in text
    record.write_text(json.dumps(comparison(arms={"dense": {}, "packed": {}})))
    code, output, _ = prepare(shop, tmp_path / "second")
    assert code == 1 and "report.json: the record has no 'accept_length'" in output
    assert not (tmp_path / "second").exists()


def test_a_gpu_record_ticks_the_box(shop, tmp_path):
    """Red when the description says "CPU only" beside GPU results, or ticks without."""
    machine = {"cpu": "c", "cores": 2, "gpu": "A fast one"}
    record = tmp_path / "gpu.json"
    record.write_text(json.dumps(comparison(hardware=machine)))
    text = prepare(shop, tmp_path / "tree", "--record", record)[2]
    assert "- [x] Provide accuracy and speed" in text
    assert "nothing here was measured" not in text and "A fast one" in text


def test_uncommitted_work_and_a_second_run_are_refused(shop, tmp_path):
    """Red when someone's changes are committed with ours, or a branch is overwritten."""
    tree = tmp_path / "tree"
    assert prepare(shop, tree)[0] == 0
    git(tree, "switch", "--quiet", "main")
    code, output, _ = prepare(shop, tree)
    assert code == 1 and f"has a branch {BRANCH} already" in output
    (tree / "python/sglang/srt/layers/other.py").write_text("mine = 1\n")
    code, output, _ = prepare(shop, tree)
    assert code == 1 and "uncommitted changes" in output
    assert git(tree, "log", "--format=%s").count("\n") == 1


def test_a_moved_neighbour_stops_before_anything_is_written(shop, tmp_path):
    """Red when commits are made on a tree that the lock was not reviewed for."""
    tree = tmp_path / "tree"
    (tree / "python/sglang/srt/layers").mkdir(parents=True)
    (tree / "python/sglang/__init__.py").touch()
    (tree / "python/sglang" / EDITED).write_text("before = 1\nx = 1\n")
    code, output, _ = prepare(shop, tree)
    assert code == 1 and "the statement before the anchor moved" in output
    assert not (tree / ".git").exists()


def test_the_flag_goes_where_flags_are_documented(shop, tmp_path):
    """Red when the row or the entry is lost, doubled, or has cells of its neighbour."""
    tree = tmp_path / "tree"
    (tree / "python").mkdir(parents=True)
    shop.build()
    (pristine,) = (shop.root / "build/pristine").glob("*/sglang")
    subprocess.run(["cp", "-r", pristine, tree / "python/sglang"], check=True)
    folder = tree / "docs_new/docs/advanced_features"
    folder.mkdir(parents=True)
    (folder / "server_arguments.mdx").write_text(f"<tbody>\n{ROW}</tbody>\n")
    page = '"docs/advanced_features/adaptive_speculative_decoding"'
    (tree / "docs_new/docs.json").write_text(f"[\n  {page}\n]\n")
    code, output, text = prepare(shop, tree)
    assert code == 0, output
    row = (folder / "server_arguments.mdx").read_text().split("</tr>\n")[1]
    assert re.findall(r"<td (\w)>", row) == list("abcd")
    assert "<code>--speculative-vocab-parallel-draft</code>" in row
    assert "<code>off</code>, <code>on</code>" in row and "topk" not in row
    pages = json.loads((tree / "docs_new/docs.json").read_text())
    assert pages[1] == "docs/advanced_features/vocab_parallel_draft"
    assert "- [x] Update documentation" in text and "by hand" not in text
    assert "| why | what |" in (folder / "vocab_parallel_draft.mdx").read_text()


def test_a_copied_table_links_to_nothing_of_ours(tmp_path):
    """Red when a link to a file beside ours is copied to where that file is not, or
    one that stands upstream too is lost."""
    page = tmp_path / "page.md"
    kept = "[d](https://d/e.md), [f](/f), a[0](x"
    page.write_text(
        "Text, [not of the table](a.md).\n\n| why | what |\n| --- | --- |\n"
        f"| none ([a.md](a.md)) of it | [b](b.md#c), [g](#g) and {kept} |\n\n| next |\n"
    )
    rows = first_table(page).splitlines()
    assert rows[2:] == [f"| none of it | b, g and {kept} |"]


def test_a_badly_formatted_file_fails_the_run(shop, tmp_path):
    """Red when the checks do not see a file, or their result does not count."""
    shop.write("test/registered/spec/test_n.py", "x = [ 1 ]  \n")
    code, output, text = prepare(shop, tmp_path / "tree")
    assert code == 1
    assert "git diff --check: FAILED (test/registered/spec/test_n.py:1" in output
    assert "black: FAILED" in output and "- [ ] Format your code" in text


def test_a_commit_cannot_import_what_comes_later():
    """Red when a reviewer would check out a commit that does not import."""
    later = "python/sglang/srt/speculative/vocab_parallel_x.py"
    user = "python/sglang/srt/layers/n.py"
    code = b"from sglang.srt.speculative import vocab_parallel_x\n"
    with pytest.raises(Exception, match=r"imports .*vocab_parallel_x, which comes"):
        make_stack({later: b"", user: code}, {later, user})
    assert len(make_stack({later: b"", user: code}, {user})) == 2
    lazy = b"def f():\n    " + code
    assert len(make_stack({later: b"", user: lazy}, {later, user})) == 2


def test_a_file_without_a_commit_is_named():
    """Red when a file of the pull request is dropped in silence."""
    with pytest.raises(Exception, match="unknown/x.py: no commit"):
        make_stack({"unknown/x.py": b""}, set())
