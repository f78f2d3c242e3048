"""``import sglang...`` for our own files on a machine where SGLang is not installed."""

from __future__ import annotations

import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "python/sglang"


def use_bare_sglang(sources: Path = SOURCES) -> None:
    """Make ``sglang`` the folder of our files only, whatever is installed."""
    if "sglang" in sys.modules:
        raise RuntimeError("sglang was imported before its bare form was asked for")
    package = types.ModuleType("sglang")
    package.__path__ = [str(sources)]
    sys.modules["sglang"] = package
