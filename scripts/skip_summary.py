"""What a test run says about the tests that it skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any


def skip_lines(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """One line for GPU tests and one for others, each with counts by reason.

    ``skipped`` holds node id and reason. A GPU test has ``cuda`` in its node id, which
    is also how ``make test-gpu`` selects them.
    """
    gpu, others = Counter(), Counter()
    for node, reason in skipped:
        (gpu if "cuda" in node.lower() else others)[reason] += 1
    return [
        f"{title}: {sum(reasons.values())} skipped ({_listed(reasons)})"
        for title, reasons in (("GPU tests", gpu), ("other tests", others))
        if reasons
    ]


def _listed(reasons: Counter) -> str:
    return "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Hook of pytest: ``skip_lines`` of the run."""
    reports = terminalreporter.stats.get("skipped", [])
    skipped = [(report.nodeid, _reason(report.longrepr)) for report in reports]
    for line in skip_lines(skipped):
        terminalreporter.write_line(line)


def _reason(longrepr: Any) -> str:
    # A file, a line and the reason; a plain text where pytest has no place to name.
    text = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return text.removeprefix("Skipped: ")
