"""Entry point of `python scripts/prepare_pr`."""

import sys
from pathlib import Path

SCRIPTS = str(Path(__file__).resolve().parents[1])
# Run as a folder, Python puts this folder itself on the path, where our module
# names would hide others: put its parent there instead.
sys.path[0] = SCRIPTS

from prepare_pr.cli import main  # noqa: E402

sys.exit(main())
