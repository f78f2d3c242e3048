"""Run with `make families`: every family, the flag off against on.

Results are kept below `build/families` and used again while the sources stay the same,
so that an interrupted run goes on where it was. `build/families.json` has a row a
family.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from scripts.serving import ServerError, cpu_engine, interruptible
from scripts.serving.client import RequestFailed

from .catalog import FAMILIES, UNIT_CASES, Family
from .compare import Row, accept_length, family_row, faults, unit_rows
from .document import record
from .serve import Kitchen, Served
from .store import MODEL_SOURCES, Store, fingerprint

BUILD = cpu_engine.ROOT / "build"
ARMS = ("off", "on")
EXIT_FAULTS, EXIT_ERROR, EXIT_INTERRUPTED = 1, 2, 130


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="families", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", metavar="FAMILY", help="only these families")
    add("--again", action="store_true", help="serve also what has a kept result")
    add(
        "--record",
        action="store_true",
        help="also put the rows into docs/families.json and the table that it makes",
    )
    args = parser.parse_args(argv)
    unknown = sorted(set(args.only or []) - set(FAMILIES))
    if unknown:
        parser.error(
            f"--only {' '.join(unknown)}: no such family; choose from "
            f"{' '.join(FAMILIES)}"
        )
    return args


def say(text: str) -> None:
    print(text, flush=True)


def served(name: str, flag: str, kitchen: Kitchen, store: Store, again: bool) -> Served:
    """One arm, kept or new."""
    kept = None if again else store.load(name, flag)
    if kept is not None:
        say(f"  {flag}: kept")
        return kept
    start = time.monotonic()
    result = kitchen.family(FAMILIES[name], flag, store.folder(name, flag))
    store.save(name, flag, result)
    say(f"  {flag}: {time.monotonic() - start:.0f} s")
    return result


def compared(name: str, family: Family, off: Served, on: Served) -> Row | None:
    """The row, or None where the arms do not agree."""
    broken = faults(family, off, on)
    for fault in broken:
        say(f"  FAULT {name}: {fault}")
    if broken:
        return None
    row = family_row(name, family, off, on)
    packed = row["packed_bytes_per_step"]
    figures = f"{row['dense_bytes_per_step']:.0f} bytes a step"
    if packed is not None:
        figures += f" dense, {packed:.0f} packed"
    say(
        f"  same tokens, accept length {accept_length(on):.2f}; {family.path}"
        f"{f' ({family.reason})' if family.reason else ''}, {figures}"
    )
    return row


def run(args: argparse.Namespace) -> list[str]:
    """Compare what was asked for and write the rows; returns the names that failed."""
    made_by = fingerprint(sources=MODEL_SOURCES)[:12]
    kitchen = Kitchen(BUILD / "families" / "models" / made_by)
    store = Store(BUILD / "families", fingerprint())
    names = args.only or list(FAMILIES)
    rows, failed = [], []
    for number, name in enumerate(names, start=1):
        say(f"[{number}/{len(names)}] {name}")
        try:
            off, on = (served(name, a, kitchen, store, args.again) for a in ARMS)
            row = compared(name, FAMILIES[name], off, on)
        except (ServerError, RequestFailed, TimeoutError) as error:
            say(f"  FAULT {name}: {error}")
            row = None
        if row is None:
            failed.append(name)
        else:
            rows.append(row)
    path = BUILD / "families.json"
    path.write_text(json.dumps(rows + unit_rows(), indent=1) + "\n")
    say(f"{path}: {len(rows)} families, {len(UNIT_CASES)} cases without a server")
    if args.record:
        say(f"{record(rows)}: written")
    return failed


def main(argv: list[str] | None = None) -> int:
    """0; 1 when a family failed, 2 for bad input, 130 when interrupted."""
    args = parse_args(argv)
    try:
        with interruptible():
            failed = run(args)
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        return EXIT_INTERRUPTED
    if failed:
        say(f"failed: {' '.join(failed)}; logs below {BUILD / 'families'}")
        return EXIT_FAULTS
    return 0


if __name__ == "__main__":
    sys.exit(main())
