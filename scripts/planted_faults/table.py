"""The faults of `faults.toml`: where each is planted and the tests that must see it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).with_name("faults.toml")
GROUPS = ("unit", "kernel", "engine")


class FaultError(Exception):
    """An entry that does not fit the tree or the tests it names."""


@dataclass(frozen=True)
class Fault:
    """One change of the fork's source, and the tests that must turn red.

    `file` is relative to the tree; `find` occurs there exactly once. `tests` are pytest
    node ids. Engine faults need a running server, the others do not; `records` is the
    arm of `test/e2e/packed` that has the fault and so is recorded anew.
    """

    name: str
    group: str
    file: str
    find: str
    put: str
    tests: tuple[str, ...]
    records: str = "packed"

    def apply(self, source: str) -> str:
        """`source` with the fault. FaultError unless `find` is there exactly once."""
        count = source.count(self.find)
        if count != 1:
            raise FaultError(
                f"{self.name}: {count} places in {self.file} read {self.find!r}; "
                "one was expected: bring faults.toml up to date"
            )
        return source.replace(self.find, self.put)


def load(path: Path = TABLE) -> list[Fault]:
    """Every fault. FaultError names an entry with a wrong or a repeated name."""
    entries = tomllib.loads(path.read_text())["fault"]
    faults = [Fault(**entry | {"tests": tuple(entry["tests"])}) for entry in entries]
    names = [fault.name for fault in faults]
    for fault in faults:
        if fault.group not in GROUPS or names.count(fault.name) > 1 or not fault.tests:
            raise FaultError(
                f"{fault.name}: a fault has a name of its own, a group of {GROUPS} "
                "and at least one test"
            )
    return faults
