"""Runs a test file's cases in Triton's interpreter, and reports each by its name.

The interpreter has to be chosen before Triton is imported: the file runs itself in a
second process, which writes a line for every case as it ends.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Callable, Dict, List

import numpy as np
import torch

from sglang.test.test_utils import CustomTestCase

CHILD_SECONDS = 900
ONLY_CASES = os.environ.get("SHARD_WINNER_ONLY_CASES", "")
"""Only the cases whose names contain it run in the interpreter; the others then fail."""


def is_second_process() -> bool:
    """Whether a test file that is run as a program has been started by its own tests."""
    return len(sys.argv) == 2 and os.environ.get("TRITON_INTERPRET") == "1"


def run_cases(cases: type) -> None:
    """Run every case of a ``TestCase`` here; one line of JSON each, as it ends."""
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    with Path(sys.argv[1]).open("w", buffering=1) as file:
        for name in unittest.defaultTestLoader.getTestCaseNames(cases):
            if ONLY_CASES not in name:
                continue
            result = cases(name).run(unittest.TestResult())
            problems = [trace for _, trace in result.failures + result.errors]
            skipped = [reason for _, reason in result.skipped]
            file.write(json.dumps([name, problems, skipped]) + "\n")


class InterpretedCase(CustomTestCase):
    """Each method, which ``reports_of`` adds, reports one case of the second process."""

    file: str
    """The test file, which calls ``run_cases`` in the second process."""
    outcomes: Dict[str, List]
    ending: str

    @classmethod
    def setUpClass(cls):
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.jsonl"
            child = subprocess.run(
                [sys.executable, cls.file, str(results)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=CHILD_SECONDS,
            )
            lines = results.read_text().splitlines() if results.exists() else []
        outcomes = [json.loads(line) for line in lines]
        cls.outcomes = {name: rest for name, *rest in outcomes}
        cls.ending = f"exit status {child.returncode}\n{child.stderr[-4000:]}"

    def report(self, name: str) -> None:
        if name not in self.outcomes:
            self.fail(f"the interpreter's process ended before {name}: {self.ending}")
        problems, skipped = self.outcomes[name]
        self.assertFalse(problems, "\n".join(problems))
        if skipped:
            self.skipTest(skipped[0])


def reports_of(cases: type) -> Dict[str, Callable]:
    """Methods of an ``InterpretedCase``: one for every case."""
    names = unittest.defaultTestLoader.getTestCaseNames(cases)
    return {name: _report(name) for name in names}


def _report(name: str) -> Callable:
    return lambda self: self.report(name)
