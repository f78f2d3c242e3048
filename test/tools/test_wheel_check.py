"""The check of the wheel over a stock installation: what counts as a trace."""

from __future__ import annotations

import copy
import os
import py_compile
from pathlib import Path

import pytest

from scripts.wheel_check.__main__ import PINS, faults, fork_wheel, owned
from scripts.wheel_check.snapshot import Difference, Hasher, copy_environment, take


def folder(tmp_path: Path) -> Path:
    root = tmp_path / "env"
    (root / "lib/pkg").mkdir(parents=True)
    (root / "lib/pkg/m.py").write_text("x = 1\n")
    (root / "lib/pkg/data.bin").write_bytes(b"\0\1")
    (root / "lib64").symlink_to("lib")
    py_compile.compile(str(root / "lib/pkg/m.py"))
    return root


def test_every_kind_of_difference_is_seen(tmp_path: Path) -> None:
    """Red when a file that is left, lost, or changed at equal size is not seen."""
    root, digest = folder(tmp_path), Hasher()
    before = take(root, digest)
    assert len(before) == 4 and before["lib64"] == "link to lib"
    assert Difference.of(before, take(root, digest)).lines() == []
    (root / "lib/pkg/new.py").write_text("")
    (root / "lib/pkg/m.py").unlink()
    (root / "lib/pkg/data.bin").write_bytes(b"\0\2")
    lines = Difference.of(before, take(root, digest)).lines()
    assert lines[:2] == ["added lib/pkg/new.py", "removed lib/pkg/m.py"]
    assert "changed lib/pkg/data.bin" in lines
    assert any("__pycache__" in line for line in lines)  # its source is gone


def test_a_compiled_file_has_to_fit_its_source(tmp_path: Path) -> None:
    """Red when compiled code of another source, which Python would take for this one's,
    or code compiled later from the same source, is judged by its bytes."""
    root, digest = folder(tmp_path), Hasher()
    before = take(root, digest)
    source = root / "lib/pkg/m.py"
    os.utime(source, (1, 1))
    stale = Difference.of(before, take(root, digest)).lines()
    assert len(stale) == 1 and "__pycache__" in stale[0]
    py_compile.compile(str(source))
    assert Difference.of(before, take(root, digest)).lines() == []


def test_the_copy_does_not_share_what_is_replaced(tmp_path: Path) -> None:
    """Red when the copy costs the disk space of an environment, or links are followed."""
    root, target = folder(tmp_path), tmp_path / "copy"
    copy_environment(root, target)
    digest = Hasher()
    assert take(root, digest) == take(target, digest)
    assert (target / "lib64").is_symlink()
    assert (target / "lib/pkg/m.py").samefile(root / "lib/pkg/m.py")


SITE = "lib/python3.11/site-packages"


def test_what_belongs_to_the_package() -> None:
    """Red when another package's file passes for ours, as sglang_kernel's would."""
    assert owned(f"{SITE}/sglang/x.py") and owned(f"{SITE}/sglang-1.dist-info/RECORD")
    assert owned("bin/sglang")
    assert not owned(f"{SITE}/sglang_kernel-0.4.10.dist-info/RECORD")
    assert not owned(f"{SITE}/torch/sglang/x.py") and not owned("bin/python")


def good() -> dict:
    answer = {"output_ids": [1], "error": None}
    arm = {"strays": [], "from_site_packages": True, "answers": [answer]}
    return {
        "restored": [],
        "uninstalled": [],
        "fork_over_stock": {"not_of_the_package": []},
        "served": {
            "stock": arm
            | {"version": PINS.version, "draft_path": None, "feature_files": []},
            "fork": arm
            | {
                "version": PINS.local_version,
                "draft_path": {"path": "packed"},
                "feature_files": ["sglang/x.py"],
            },
        },
    }


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (("restored",), ["changed x"], "restored: changed x"),
        (("uninstalled",), ["added x"], "uninstalled: added x"),
        (("fork_over_stock", "not_of_the_package"), ["added y"], "touched"),
        (("served", "fork", "version"), PINS.version, "says version"),
        (("served", "fork", "draft_path"), {"path": "dense"}, "the server says"),
        (("served", "fork", "feature_files"), [], "not by the fork"),
        (("served", "fork", "answers"), [{"error": None}], "otherwise than stock"),
        (("served", "stock", "from_site_packages"), False, "no installed SGLang"),
        (("served", "stock", "strays"), ["/a.py"], "loaded ['/a.py']"),
    ],
)
def test_each_trace_is_a_fault(path, value, text) -> None:
    """Red when a difference, another package that answers, or a dense server passes."""
    report = copy.deepcopy(good())
    assert faults(report) == []
    place = report
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert any(text in fault for fault in faults(report))


def test_no_wheel_says_what_to_run(tmp_path: Path) -> None:
    """Red when a missing wheel is an exception without advice."""
    with pytest.raises(ValueError, match="make wheel"):
        fork_wheel(tmp_path)
