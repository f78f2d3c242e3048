"""The pull request: commits on a tree, and what is checked of them."""

import json
import re
import subprocess

import pytest
from prepare_pr.checkout import BRANCH
from prepare_pr.docs import first_table
from prepare_pr.stack import make_stack
from pull_request import EDITED, ROW, git, prepare


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
        "python/sglang/test/kits/n_kit.py",
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
