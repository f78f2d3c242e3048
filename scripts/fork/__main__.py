"""Entry point of `python scripts/fork`."""

import sys
from pathlib import Path

SCRIPTS = str(Path(__file__).resolve().parents[1])
# Run as a folder, Python puts this folder itself on the path, where our module
# names would hide others: put its parent there instead.
sys.path[0] = SCRIPTS

from fork.cli import main  # noqa: E402

sys.exit(main())
