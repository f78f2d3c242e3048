"""Run with `make faults`: every planted fault must turn one of its tests red."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from .run import ROOT, Outcome, link_tree, planted, run_tests
from .table import GROUPS, Fault, FaultError, load

BUILD = ROOT / "build" / "faults"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="planted_faults", description=__doc__)
    add = parser.add_argument
    add("--group", nargs="+", choices=GROUPS, default=list(GROUPS))
    add("--name", nargs="+", help="only these faults")
    add("--fork", type=Path, default=ROOT / "build" / "fork", help="fork tree")
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[Fault]:
    faults = [fault for fault in load() if fault.group in args.group]
    if args.name is None:
        return faults
    known = {fault.name: fault for fault in faults}
    unknown = set(args.name) - set(known)
    if unknown:
        raise FaultError(f"--name {', '.join(sorted(unknown))}: no such fault")
    return [known[name] for name in args.name]


def check_sound(faults: list[Fault], copy: Path) -> Outcome:
    """The named tests on the fork as it is: red tests would prove nothing."""
    tests = sorted({test for fault in faults for test in fault.tests})
    return run_tests(tests, copy, BUILD / "recordings" / "sound")


def try_fault(fault: Fault, copy: Path) -> Outcome:
    """The fault's tests on a fork that has it; servers without it do not run again."""
    recordings = BUILD / "recordings" / fault.name
    shutil.rmtree(recordings, ignore_errors=True)
    sound = BUILD / "recordings" / "sound"
    for arm in sound.glob("*"):
        if arm.name != fault.records:
            shutil.copytree(arm, recordings / arm.name)
    with planted(fault, copy):
        return run_tests(fault.tests, copy, recordings)


def main() -> int:
    args = arguments()
    try:
        faults = chosen(args)
        copy = BUILD / "fork"
        link_tree(args.fork, copy)
        for fault in faults:
            fault.apply((copy / fault.file).read_text())
    except (FaultError, FileNotFoundError) as error:
        print(f"planted_faults: {error}", file=sys.stderr)
        return 2
    print(f"{len(faults)} faults; their tests on the fork as it is ...", flush=True)
    sound = check_sound(faults, copy)
    print(f"{sound.verdict} in {sound.seconds:.0f} s: {sound.summary}", flush=True)
    if sound.verdict != "green":
        return 1
    results = []
    for fault in faults:
        outcome = try_fault(fault, copy)
        results.append({**asdict(fault), **asdict(outcome)})
        line = f"{outcome.verdict:6} {fault.group:6} {fault.name} ({outcome.seconds:.0f} s)"
        print(f"{line}: {outcome.summary}", flush=True)
    report = BUILD / "faults.json"
    report.write_text(json.dumps(results, indent=2) + "\n")
    missed = [result["name"] for result in results if result["verdict"] != "red"]
    print(f"{len(results) - len(missed)} of {len(results)} turned a test red; {report}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
