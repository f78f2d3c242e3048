"""`python -m scripts.wheel_check`: install over stock, serve, restore, uninstall.

On a copy of this environment, by the commands of the README. After each step every file
of the copy is compared with how it was. pip takes the stock package from `build/wheels`
and the fork from `dist`, both made before; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from scripts.serving import cpu_engine, interruptible
from scripts.wheel_check.snapshot import (
    Difference,
    Hasher,
    Snapshot,
    copy_environment,
    take,
)

ROOT = cpu_engine.ROOT
sys.path.insert(0, str(ROOT / "scripts"))

from fork.pins import Pins  # noqa: E402
from fork.project import Project  # noqa: E402

PINS = Pins.load(Project(ROOT))
STOCK = f"{PINS.name}=={PINS.version}"
INSTALL = ("install", "--quiet", "--no-deps", "--force-reinstall")
_START = time.monotonic()


def say(text: str) -> None:
    """One progress line, with the time since the start."""
    print(f"{time.monotonic() - _START:6.0f} s  {text}", flush=True)


def fork_wheel(dist: Path) -> Path:
    """The wheel of the pins' version for this interpreter. ValueError: none, or two."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    machine = PINS.wheel_name().rpartition("-")[2]
    found = sorted(dist.glob(f"{PINS.name}-{PINS.local_version}-{tag}-*-{machine}"))
    if len(found) != 1:
        raise ValueError(f"{dist}: {len(found)} wheels for {tag}, run `make wheel`")
    return found[0]


class Copy:
    """The copied environment, and what was seen of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._digest = Hasher()

    def pip(self, *arguments: str) -> None:
        """Raises ValueError with pip's words when it fails."""
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        env |= {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(ROOT / "build" / "wheels"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        say(f"pip {' '.join(arguments)}")
        command = [str(self.python), "-m", "pip", *arguments]
        # Not in the repository, whose folders are not for pip to see.
        done = subprocess.run(
            command, env=env, cwd=self.folder, capture_output=True, text=True
        )
        if done.returncode:
            raise ValueError(f"pip {' '.join(arguments)}: {done.stderr[-2000:]}")

    def serve(self, which: str, folder: Path) -> dict[str, Any]:
        """What `served.py` found, run by the copy's interpreter."""
        say(f"serving: {which}")
        folder.mkdir(parents=True, exist_ok=True)
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        command = [str(self.python), "-m", "scripts.wheel_check.served"]
        done = subprocess.run([*command, which, str(folder)], cwd=ROOT, env=env)
        if done.returncode:
            raise ValueError(f"the {which} server did not answer; logs in {folder}")
        return json.loads((folder / f"{which}.json").read_text())

    def look(self) -> Snapshot:
        return take(self.folder, self._digest)


def owned(name: str) -> bool:
    """Whether a path of the environment belongs to the sglang package."""
    inside = name.partition("site-packages/")[2]
    return inside.startswith((f"{PINS.name}/", f"{PINS.name}-")) or name in (
        "bin/sglang",
        "bin/killall_sglang",
    )


def check(out: Path, wheel: Path) -> dict[str, Any]:
    """Every step; `faults` has what is not as it should be."""
    copy, served = Copy(out / "env"), out / "served"
    say(f"a copy of {sys.prefix}")
    copy_environment(Path(sys.prefix), copy.folder)
    raw = copy.look()
    copy.pip(*INSTALL, STOCK)
    stock_answers = copy.serve("stock", served)
    before = copy.look()
    copy.pip(*INSTALL, str(wheel))
    fork = Difference.of(before, copy.look())
    fork_answers = copy.serve("fork", served)
    copy.pip(*INSTALL, STOCK)
    after = copy.look()
    copy.pip(*INSTALL, str(wheel))
    copy.pip("uninstall", "--quiet", "--yes", PINS.name)
    rest = copy.look()
    foreign = {name: value for name, value in before.items() if not owned(name)}
    report = {
        "environment": {"files": len(before), "python": sys.version.split()[0]},
        "wheel": wheel.name,
        "pip_itself": Difference.of(raw, before).lines(),
        "fork_over_stock": {
            "added": len(fork.added),
            "removed": len(fork.removed),
            "changed": len(fork.changed),
            "not_of_the_package": [
                line for line in fork.lines() if not owned(line.split(" ", 1)[1])
            ],
        },
        "restored": Difference.of(before, after).lines(),
        "uninstalled": Difference.of(foreign, rest).lines(),
        "served": {"stock": stock_answers, "fork": fork_answers},
    }
    return report | {"faults": faults(report)}


def faults(report: dict[str, Any]) -> list[str]:
    """What is wrong in a report, a line each."""
    found = [f"restored: {line}" for line in report["restored"]]
    found += [f"uninstalled: {line}" for line in report["uninstalled"]]
    foreign = report["fork_over_stock"]["not_of_the_package"]
    found += [f"the wheel touched what is not its own: {line}" for line in foreign]
    stock, fork = report["served"]["stock"], report["served"]["fork"]
    for name, arm, version in (
        ("stock", stock, PINS.version),
        ("fork", fork, PINS.local_version),
    ):
        if arm["version"] != version:
            found.append(f"{name}: the server says version {arm['version']}")
        if arm["strays"] or not arm["from_site_packages"]:
            found.append(f"{name}: loaded {arm['strays'] or 'no installed SGLang'}")
        found += [f"{name}: {a['error']}" for a in arm["answers"] if a["error"]]
    if (fork["draft_path"] or {}).get("path") != "packed":
        found.append(f"fork: the server says {fork['draft_path']}")
    if stock["feature_files"] or not fork["feature_files"]:
        found.append("the feature's modules were loaded by stock, or not by the fork")
    if stock["answers"] != fork["answers"]:
        found.append("the fork, flag on, answers otherwise than stock")
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wheel_check", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, default=ROOT / "build" / "wheel-check", help="%(default)s")
    add("--dist", type=Path, default=ROOT / "dist", help="%(default)s")
    add("--keep", action="store_true", help="leave the copied environment there")
    args = parser.parse_args(argv)
    out = args.out.resolve()
    try:
        with interruptible():
            report = check(out, fork_wheel(args.dist))
    except (ValueError, OSError) as error:
        print(f"wheel_check: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("wheel_check: interrupted, every server was stopped", file=sys.stderr)
        return 130
    finally:
        if not args.keep:
            shutil.rmtree(out / "env", ignore_errors=True)
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    counts = report["fork_over_stock"]
    say(
        f"{report['environment']['files']} files; the wheel adds {counts['added']}, "
        f"removes {counts['removed']}, changes {counts['changed']}; restored: "
        f"{len(report['restored'])} differences; uninstalled: "
        f"{len(report['uninstalled'])} left or lost"
    )
    say(f"pip by itself, in a copy: {'; '.join(report['pip_itself'][:8]) or 'nothing'}")
    say(f"report: {out / 'report.json'}")
    for fault in report["faults"][:20]:
        print(f"wheel_check: {fault}", file=sys.stderr)
    return int(bool(report["faults"]))


if __name__ == "__main__":
    sys.exit(main())
