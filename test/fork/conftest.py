"""A small repository with a small upstream wheel, for the fork tool's tests."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(Path(__file__).parent)]

from fork.cli import main  # noqa: E402
from fork.pristine import record_hash  # noqa: E402
from fork.project import Project  # noqa: E402
from pull_request import fill  # noqa: E402

VERSION = "1.2.3"


def wheel_name(version: str = VERSION) -> str:
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = platform.machine().replace("arm64", "aarch64")
    return f"sglang-{version}-{tag}-{tag}-linux_{machine}.whl"


class Workshop:
    """A repository in a temporary folder, with helpers that write its files."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture) -> None:
        self.root = root
        self.capsys = capsys
        self.project = Project(root)
        self.edits: dict[str, list[dict]] = {}
        self.write("NOTICE", "Our notice.\n")
        self.write("LICENSE", "Our licence.\n")

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def upstream(self, files: dict[str, str], version: str = VERSION) -> Path:
        """Make the wheel of a release with these package files; VERSION is pinned."""
        info = f"sglang-{version}.dist-info"
        contents = {f"sglang/{n}": t.encode() for n, t in files.items()}
        contents.setdefault("sglang/__init__.py", b"")
        contents[f"{info}/METADATA"] = (
            f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\n"
            "License-File: LICENSE\n\nA text.\n"
        ).encode()
        tag = wheel_name().removesuffix(".whl").split("-", 2)[2]
        contents[f"{info}/WHEEL"] = (
            f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n"
        ).encode()
        contents[f"{info}/licenses/LICENSE"] = b"Upstream's licence.\n"
        record = "".join(
            f"{name},{record_hash(data)},{len(data)}\n"
            for name, data in contents.items()
        )
        contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
        path = self.write(f"build/wheels/{wheel_name(version)}", b"")
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in contents.items():
                archive.writestr(name, data)
        if version != VERSION:
            return path
        self.wheel = path
        self.pin(hashlib.sha256(path.read_bytes()).hexdigest())
        return path

    def pin(self, digest: str) -> None:
        self.write(
            "scripts/fork/pins.toml",
            f'[upstream]\nname = "sglang"\nversion = "{VERSION}"\n'
            '[local]\nlabel = "vpdraft"\nnumber = 7\n'
            f'[sha256]\n"{wheel_name()}" = "{digest}"\n',
        )

    def edit(self, file: str, **fields) -> None:
        """Add an edit of `sglang/<file>`; what a test does not name is filled in."""
        entries = self.edits.setdefault(file, [])
        filled = {
            "name": f"edit-{len(entries) + 1}",
            "why": "A reason.",
            "retires": "An end.",
        }
        entries.append(filled | fields)
        text = "\n".join(toml_of(entry) for entry in entries)
        self.write(f"python/edits/{file.removesuffix('.py')}.toml", text)

    def clear_edits(self) -> None:
        for file in self.edits:
            (self.root / f"python/edits/{file.removesuffix('.py')}.toml").unlink()
        self.edits.clear()

    def run(self, *arguments: object) -> tuple[int, str]:
        """Exit code and the whole output of one command."""
        self.capsys.readouterr()
        code = main(["--root", str(self.root), *map(str, arguments)])
        captured = self.capsys.readouterr()
        return code, captured.out + captured.err

    def build(self, *arguments: object) -> str:
        code, output = self.run("build", *arguments)
        assert code == 0, output
        return output

    def built(self, file: str) -> str:
        return (self.root / "build/fork/sglang" / file).read_text("utf-8")


def toml_of(entry: dict) -> str:
    def value(item: object) -> str:
        if isinstance(item, dict):
            return "{ " + ", ".join(f"{k} = {value(v)}" for k, v in item.items()) + " }"
        return json.dumps(item)

    return "[[edit]]\n" + "".join(f"{k} = {value(v)}\n" for k, v in entry.items())


@pytest.fixture
def workshop(tmp_path: Path, capsys: pytest.CaptureFixture) -> Workshop:
    return Workshop(tmp_path / "repository", capsys)


@pytest.fixture
def shop(workshop: Workshop) -> Workshop:
    return fill(workshop)
