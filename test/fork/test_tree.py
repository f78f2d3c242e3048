"""The fork tree and the wheel it comes from: built whole, equal, or not at all."""

import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import pytest

FILES = {
    "m.py": "x = 1\n",
    "srt/deep/n.py": "def f():\n    return 1\n",
    "srt/deep/__init__.py": "",
    "data.json": "{}\n",
}
EDIT = {"anchor": {"assigns": "x"}, "op": "after", "insert": "y = 2"}


@pytest.fixture
def shop(workshop):
    workshop.upstream(FILES)
    workshop.edit("m.py", **EDIT)
    workshop.write("python/sglang/srt/ours/new.py", "z = 3\n")
    return workshop


def contents(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def test_the_tree_is_upstream_with_edits_and_new_files(shop):
    """Red when a file is lost, an edit is left out, or something else comes along."""
    shop.write("python/sglang/srt/ours/__pycache__/new.cpython-311.pyc", b"\0")
    assert "1 changed and 1 new files" in shop.build()
    expected = {name: text.encode() for name, text in FILES.items()}
    expected |= {"__init__.py": b"", "m.py": b"x = 1\ny = 2\n"}
    expected |= {"srt/ours/new.py": b"z = 3\n"}
    assert contents(shop.root / "build/fork/sglang") == expected


def test_building_twice_gives_identical_bytes(shop):
    """Red when a build starts from an edited file instead of the pristine one."""
    shop.build()
    first = contents(shop.root / "build/fork/sglang")
    assert "is up to date" in shop.build()
    shutil.rmtree(shop.root / "build/fork")
    shop.build("--out", shop.root / "build/other")
    shop.build()
    assert contents(shop.root / "build/fork/sglang") == first
    assert contents(shop.root / "build/other/sglang") == first


@pytest.mark.parametrize(
    "path", ["python/sglang/srt/ours/new.py", "build/fork/sglang/m.py"]
)
def test_a_changed_input_or_output_is_built_again(shop, path):
    """Red when the stamp does not see a new input, or a tree changed by hand."""
    shop.build()
    shop.write(path, "w = 4\n")
    assert shop.build().startswith("built ")
    assert shop.built("m.py") == "x = 1\ny = 2\n"
    assert shop.built("srt/ours/new.py") == ("w = 4\n" if "new" in path else "z = 3\n")


def test_edited_files_are_not_links_to_pristine_ones(shop):
    """Red when writing into the tree reaches the pristine bytes of an edited file."""
    shop.build()
    pristine = next((shop.root / "build/pristine").glob("*/sglang"))
    tree = shop.root / "build/fork/sglang"
    assert not (tree / "m.py").samefile(pristine / "m.py")
    assert (pristine / "m.py").read_bytes() == b"x = 1\n"
    assert (tree / "data.json").samefile(pristine / "data.json")


def test_a_damaged_pristine_folder_is_noticed(shop):
    """Red when a write through a hard link goes into the next build unseen."""
    shop.build()
    path = shop.root / "build/fork/sglang/data.json"
    path.chmod(0o644)
    path.write_text("[]\n")
    shop.write("python/sglang/srt/ours/new.py", "w = 4\n")
    code, output = shop.run("build")
    assert code == 1 and "1 files differ from the wheel, sglang/data.json" in output


def test_bytecode_is_kept_for_unchanged_files_only(shop):
    """Red when stale bytecode of an edited file survives, or all of it is lost."""
    shop.build()
    tree = shop.root / "build/fork/sglang"
    for name in ("__pycache__/m.x.pyc", "srt/deep/__pycache__/n.x.pyc"):
        shop.write(f"build/fork/sglang/{name}", b"code")
    shop.write("python/sglang/srt/ours/new.py", "w = 4\n")
    shop.build()
    assert not (tree / "__pycache__").exists()
    assert (tree / "srt/deep/__pycache__/n.x.pyc").read_bytes() == b"code"


def test_a_failed_build_leaves_the_old_tree(shop):
    """Red when a refused edit destroys the tree that is there."""
    shop.build()
    before = contents(shop.root / "build/fork")
    shop.edit("m.py", **(EDIT | {"anchor": {"assigns": "missing"}}))
    code, output = shop.run("build")
    assert code == 1 and "is missing" in output
    assert contents(shop.root / "build/fork") == before
    assert [p.name for p in (shop.root / "build").glob(".fork*")] == []


def test_a_folder_that_is_no_fork_tree_is_not_replaced(shop):
    """Red when --out deletes a folder that somebody else made."""
    shop.write("build/mine/file.txt", "keep\n")
    code, output = shop.run("build", "--out", shop.root / "build/mine")
    assert code == 1 and "is not a fork tree" in output
    assert contents(shop.root / "build/mine") == {"file.txt": b"keep\n"}


def test_a_wrong_wheel_hash_is_refused(shop):
    """Red when a wheel is used whose bytes nobody pinned."""
    path = shop.wheel
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("sglang/more.py", "bad = 1\n")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    code, output = shop.run("build")
    assert code == 1 and "wrong sha256" in output and found in output
    assert not (shop.root / "build/pristine").exists()


def test_wheels_that_are_not_pinned_are_refused(shop, tmp_path):
    """Red when --wheel takes any file."""
    other = tmp_path / "sglang-9.9.9-cp311-cp311-linux_x86_64.whl"
    other.write_bytes(b"")
    assert "is not pinned" in shop.run("build", "--wheel", other)[1]
    assert "no such wheel" in shop.run("build", "--wheel", tmp_path / "none.whl")[1]


def test_a_python_without_a_pinned_wheel_is_told_which_there_are(shop):
    """Red when another interpreter gets a wheel with wrong extension modules."""
    pins = shop.project.pins
    pins.write_text(
        pins.read_text().replace(shop.wheel.name, "sglang-1-cp39-x_sparc.whl")
    )
    code, output = shop.run("build")
    assert code == 1 and "no wheel is pinned for cp3" in output
    assert "sglang-1-cp39-x_sparc.whl" in output


@pytest.mark.parametrize(
    "new, hidden",
    [
        ("m.py", "sglang/m.py"),
        ("data.json", "sglang/data.json"),
        ("srt/deep.py", "sglang/srt/deep/"),
        ("m/part.py", "sglang/m.py"),
    ],
)
def test_a_new_file_may_not_cover_one_of_upstream(shop, new, hidden):
    """Red when a file of ours replaces or hides a file of upstream."""
    shop.write(f"python/sglang/{new}", "mine = 1\n")
    code, output = shop.run("build")
    assert code == 1 and f"python/sglang/{new} covers upstream's {hidden}" in output


def test_an_edit_of_a_file_that_upstream_does_not_have(shop):
    """Red when an edit file that fits nothing is skipped."""
    shop.edit("gone.py", **EDIT)
    code, output = shop.run("build")
    assert (
        code == 1 and "python/edits/gone.toml: sglang/gone.py does not exist" in output
    )


def test_an_insert_that_does_not_parse_is_refused(shop):
    """Red when a broken file gets into the tree."""
    shop.edit("m.py", **(EDIT | {"insert": "y = ("}))
    code, output = shop.run("build")
    assert code == 1 and "sglang/m.py no longer parses after the edits" in output


def test_apply_changes_a_checkout_in_place(shop):
    """Red when apply leaves a file out or touches another."""
    shop.run("lock")
    shop.build()
    checkout = shop.root / "build/checkout"
    pristine = next((shop.root / "build/pristine").glob("*/sglang"))
    shutil.copytree(pristine, checkout / "python/sglang")
    os.chmod(checkout / "python/sglang/m.py", 0o755)
    code, output = shop.run("apply", "--tree", checkout)
    assert code == 0 and "1 files changed, 1 added" in output
    built = contents(shop.root / "build/fork/sglang")
    assert contents(checkout / "python/sglang") == built
    assert (checkout / "python/sglang/m.py").stat().st_mode & 0o777 == 0o755
    code, output = shop.run("apply", "--tree", checkout)
    assert code == 1 and "covers upstream's" in output and "moved" in output
    assert contents(checkout / "python/sglang") == built


def test_apply_refuses_before_it_writes(shop):
    """Red when one bad edit leaves the others applied."""
    shop.edit(
        "srt/deep/n.py", scope="f", anchor={"returns": True}, op="before", insert="q"
    )
    shop.run("lock")
    package = shop.root / "build/tree/sglang"
    shutil.copytree(next((shop.root / "build/pristine").glob("*/sglang")), package)
    path = package / "srt/deep/n.py"
    path.chmod(0o644)
    path.write_text("def f():\n    return 2\n")
    before = contents(package)
    code, output = shop.run("apply", "--tree", package.parent)
    assert code == 1 and "srt/deep/n.toml [edit-1]" in output
    assert contents(package) == before


def test_a_write_that_fails_is_undone(shop):
    """Red when a full disk leaves half of the files changed."""
    shop.run("lock")
    package = shop.root / "build/tree/sglang"
    shutil.copytree(next((shop.root / "build/pristine").glob("*/sglang")), package)
    before = contents(package)
    shop.write("build/tree/sglang/srt/ours", "a file where a folder has to be")
    before |= {"srt/ours": b"a file where a folder has to be"}
    with pytest.raises(OSError):
        shop.run("apply", "--tree", package)
    assert contents(package) == before


def test_a_rename_that_fails_is_undone(shop, monkeypatch):
    """Red when files that were already changed stay so after a later one failed."""
    shop.edit("srt/deep/n.py", scope="f", op="body_first", insert="q")
    shop.run("lock")
    package = shop.root / "build/tree/sglang"
    shutil.copytree(next((shop.root / "build/pristine").glob("*/sglang")), package)
    before = contents(package)
    replace, done = Path.replace, []

    def failing(self, target):
        if len(done) == 2:
            raise OSError("no more")
        done.append(target)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OSError, match="no more"):
        shop.run("apply", "--tree", package)
    assert len(done) == 2 and contents(package) == before


def test_a_tree_without_the_package_is_refused(shop, tmp_path):
    """Red when apply writes new files into any folder."""
    code, output = shop.run("apply", "--tree", tmp_path)
    assert code == 1 and "no sglang package there" in output
