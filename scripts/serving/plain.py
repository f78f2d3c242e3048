"""Values as a report holds them."""

from __future__ import annotations

from typing import Any

from scripts.serving.cpu_engine import ROOT


def plain(value: Any) -> Any:
    """Paths inside the repository become relative, other unusual types strings."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value).replace(f"{ROOT}/", "")
