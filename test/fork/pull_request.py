"""A shop with everything that a pull request is made of, shared by its tests."""

import subprocess

from prepare_pr.cli import main

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

## Earlier: another day

| rows | ms |
| --- | --- |
| 8 | 99.75 |

## A step

Warm.

| rows | ms |
| --- | --- |
| 8 | 31.25 |

Within the [noise](records/noise.json).
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


def fill(workshop):
    """An upstream, edits, new files, records and pages: all that a pull request has."""
    workshop.upstream({EDITED: "x = 1\n", "srt/layers/other.py": ""})
    place = {"anchor": {"assigns": "x"}, "op": "after"}
    workshop.edit(EDITED, **place, insert="y = 2", why="Because y.")
    workshop.edit(EDITED, **place, insert="engine = 1", engine="cpu")
    write = workshop.write
    write("python/sglang/kernels/ops/speculative/k.py", "k = 1\n")
    write("python/sglang/srt/layers/n.py", IMPORTS)
    write("python/sglang/test/kits/n_kit.py", "n = 1\n")
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
