"""The fork's wheel: pip installs it, and its RECORD is true."""

import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile

import pytest

VERSION = "1.2.3+vpdraft.7"
INFO = f"sglang-{VERSION}.dist-info"


@pytest.fixture
def shop(workshop):
    workshop.upstream({"m.py": "x = 1\n", "n.py": "x = 1\n", "deep/data.bin": "\0\1"})
    edit = {"anchor": {"assigns": "x"}, "op": "after", "insert": "y = 2"}
    workshop.edit("m.py", **edit)
    workshop.edit("n.py", **edit, engine="cpu")
    workshop.write("python/sglang/deep/new.py", "z = 3\n")
    return workshop


def build(shop, out="dist"):
    code, output = shop.run("wheel", "--out", shop.root / out)
    assert code == 0, output
    (path,) = (shop.root / out).glob("*.whl")
    assert output.strip() == str(path)
    return path


def test_contents_and_metadata(shop):
    """Red when a file is missing, the version is upstream's, or a notice is lost."""
    path = build(shop)
    assert path.name.startswith(f"sglang-{VERSION}-cp3")
    with zipfile.ZipFile(path) as archive:
        read = {name: archive.read(name) for name in archive.namelist()}
    assert read["sglang/m.py"] == b"x = 1\ny = 2\n"
    assert read["sglang/n.py"] == b"x = 1\n"  # the CPU engine's edit stays out
    assert read["sglang/deep/new.py"] == b"z = 3\n"
    assert read["sglang/deep/data.bin"] == b"\0\1"
    assert f"\nVersion: {VERSION}\n".encode() in read[f"{INFO}/METADATA"]
    assert read[f"{INFO}/licenses/LICENSE"] == b"Upstream's licence.\n"
    notice = read[f"{INFO}/licenses/NOTICE"].decode()
    assert notice.startswith("Our notice.\n") and notice.endswith("\n  sglang/m.py\n")
    assert {name.split("/")[0] for name in read} == {"sglang", INFO}


def test_the_package_says_which_fork_it_is(shop):
    """Red when the server reports stock SGLang, or the version is kept twice."""
    text = "a: str\n\na = b = '1.2.3'\nc = d = (1, 2, 3)\n"
    shop.upstream({"m.py": "x = 1\n", "n.py": "x = 1\n", "_version.py": text})
    with zipfile.ZipFile(build(shop)) as archive:
        changed = archive.read("sglang/_version.py").decode()
    names = {}
    exec(changed, names)
    assert names["a"] == names["b"] == VERSION
    assert names["c"] == (1, 2, 3, "vpdraft.7")
    shop.upstream({"m.py": "x = 1\n", "n.py": "x = 1\n", "_version.py": text[8:] * 2})
    code, output = shop.run("wheel", "--out", shop.root / "dist")
    assert code == 1 and "_version.py does not say '1.2.3' once" in output


def test_every_supported_python_gets_a_wheel(shop):
    """Red when `make wheel` leaves a pinned Python out, or takes another machine's."""
    tag = f"cp3{sys.version_info.minor}"
    other = shop.wheel.name.replace(tag, "cp399")
    foreign = shop.wheel.name.replace(".whl", "x.whl")
    (shop.wheel.parent / other).write_bytes(shop.wheel.read_bytes())
    digest = hashlib.sha256(shop.wheel.read_bytes()).hexdigest()
    pins = shop.root / "scripts/fork/pins.toml"
    more = "".join(f'"{name}" = "{digest}"\n' for name in (other, foreign))
    pins.write_text(pins.read_text() + more)
    code, output = shop.run("wheel", "--out", shop.root / "dist")
    assert code == 0, output
    built = sorted(path.name for path in (shop.root / "dist").iterdir())
    assert [name.split("-")[2] for name in built] == [tag, "cp399"]
    assert len(output.split()) == 2


def test_wheels_for_other_machines(shop):
    """Red when the wheels of an Arm host can only be built on one, or other hosts' come
    with them."""
    here = shop.wheel.name.rpartition("_")[2]  # of x86_64, `64.whl`
    machines = {"64.whl": ("x86_64", "aarch64"), "aarch64.whl": ("aarch64", "x86_64")}
    own, other = machines[here]
    foreign = shop.wheel.name.replace(f"_{own}.whl", f"_{other}.whl")
    (shop.wheel.parent / foreign).write_bytes(shop.wheel.read_bytes())
    pins = shop.root / "scripts/fork/pins.toml"
    digest = hashlib.sha256(shop.wheel.read_bytes()).hexdigest()
    pins.write_text(pins.read_text() + f'"{foreign}" = "{digest}"\n')
    for machines in ([other], [own, other]):
        out = shop.root / "-".join(machines)
        flags = [word for machine in machines for word in ("--machine", machine)]
        code, output = shop.run("wheel", "--out", out, *flags)
        assert code == 0, output
        built = sorted(path.name for path in out.iterdir())
        assert len(built) == len(machines)
        for machine, name in zip(sorted(machines), built):
            assert name.endswith(f"_{machine}.whl") and VERSION in name


def site_files(site):
    return {
        path.relative_to(site).as_posix(): path.read_bytes()
        for path in site.rglob("*")
        if path.is_file()
    }


def test_over_a_stock_installation_and_away_again(shop, tmp_path):
    """Red when the fork leaves a file behind, or changes one that it does not own."""
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (site,) = home.glob("lib/*/site-packages")

    def pip(*arguments):
        command = [sys.executable, "-m", "pip", "--python", str(home / "bin/python")]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    (site / "other.py").write_text("not = 'ours'\n")
    empty = site_files(site)
    pip(*install, str(shop.wheel))
    stock = site_files(site)
    pip(*install, "--force-reinstall", str(build(shop)))
    fork = site_files(site)
    assert fork["sglang/m.py"] == b"x = 1\ny = 2\n" and "sglang/deep/new.py" in fork
    assert not [name for name in fork if "sglang-1.2.3.dist-info" in name]
    pip(*install, "--force-reinstall", str(shop.wheel))
    assert site_files(site) == stock
    pip(*install, "--force-reinstall", str(build(shop)))
    pip("uninstall", "--quiet", "--yes", "sglang")
    assert site_files(site) == empty


def test_record_names_every_file_with_its_hash(shop):
    """Red when pip's check of an installed file would fail."""
    with zipfile.ZipFile(build(shop)) as archive:
        record = archive.read(f"{INFO}/RECORD").decode()
        rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(record))}
        assert sorted(rows) == sorted(archive.namelist())
        assert rows.pop(f"{INFO}/RECORD") == ["", ""]
        for name, (digest, size) in rows.items():
            data = archive.read(name)
            sha256 = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
            assert digest == "sha256=" + sha256.decode().rstrip("=")
            assert int(size) == len(data)


def test_two_builds_are_identical(shop):
    """Red when a time or an order gets into the wheel."""
    path = build(shop)
    first = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        times = {info.date_time for info in archive.infolist()}
    assert times == {(1980, 1, 1, 0, 0, 0)}
    (shop.root / "python/sglang/deep/new.py").touch()
    assert build(shop, "again").read_bytes() == first


def test_pip_installs_it(shop, tmp_path):
    """Red when the file name, the dist-info or RECORD disagree."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-index", "--target", str(tmp_path / "site"), str(build(shop))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site/sglang/m.py").read_text() == "x = 1\ny = 2\n"
    assert (tmp_path / "site" / INFO / "RECORD").exists()


def test_a_missing_notice_is_refused(shop):
    """Red when a wheel leaves the house without its notice."""
    (shop.root / "NOTICE").unlink()
    code, output = shop.run("wheel", "--out", shop.root / "dist")
    assert code == 1 and "NOTICE is missing" in output
    assert list((shop.root / "dist").iterdir()) == []
