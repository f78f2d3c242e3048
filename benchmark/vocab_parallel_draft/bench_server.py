"""Server A/B on the CPU engine: `make ab` with the small model's profile.

Every option of `python -m scripts.ab` works here. Results: `build/bench/server`.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.ab.__main__ import main  # noqa: E402

PROFILE = "cpu-small"
OUT = ROOT / "build" / "bench" / "server"
# Enough to see that everything works; one pair allows no verdict.
QUICK = ["--pairs", "1", "--concurrency", "1,8", "--requests", "4,24"]


def arguments(argv: list[str]) -> list[str]:
    """The arguments of `scripts.ab`; what the caller gives comes last and wins."""
    given = [arg for arg in argv if arg != "--quick"]
    quick = QUICK if "--quick" in argv else []
    return [PROFILE, "--out", str(OUT), *quick, *given]


if __name__ == "__main__":
    sys.exit(main(arguments(sys.argv[1:])))
