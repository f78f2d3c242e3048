"""Checks on a model folder and a fork tree before a server is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_config(path: Path) -> dict[str, Any]:
    """A model's `config.json`; ValueError when there is none to read."""
    try:
        return json.loads((path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"--model-path {path}: cannot read config.json ({error}); give a model "
            f"folder, or leave the option out to have the small model made"
        ) from None


def check_tp(config: dict[str, Any], tp: int) -> None:
    """ValueError when the model's heads cannot be split over `tp` ranks."""
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    if heads % tp or (kv_heads % tp and tp % kv_heads):
        raise ValueError(
            f"--tp {tp} does not divide the model's {heads} attention heads and "
            f"{kv_heads} key-value heads; choose another --tp or model"
        )


def check_fork(fork: Path) -> None:
    """ValueError when there is no fork tree to serve."""
    if not (fork / "sglang" / "launch_server.py").is_file():
        raise ValueError(f"--fork {fork}: no fork tree; run `make fork`")
