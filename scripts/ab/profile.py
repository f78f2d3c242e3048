"""A profile: which model is served how, and what load it gets."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from scripts.ab.clients import CLIENTS

FOLDER = Path(__file__).resolve().parent / "profiles"
ENGINES = ("stand-in", "cpu", "gpu")


@dataclass(frozen=True)
class Profile:
    """One TOML file of `scripts/ab/profiles`, command-line changes included.

    `engine`: `stand-in` is the CPU engine with this repository's torch ops, `cpu` SGLang's
    own CPU build, `gpu` CUDA. Without `model` the small model is made. `requests` has one
    number per entry of `concurrency`. `pairs` is the number of server starts of each side.
    """

    name: str
    title: str
    engine: str
    tp: int
    model: str | None = None
    args: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    concurrency: Sequence[int] = (1, 2, 4, 8, 16, 32, 64)
    requests: Sequence[int] = (8, 12, 16, 32, 64, 96, 192)
    input_tokens: int = 256
    output_tokens: int = 1024
    dataset: str | None = None
    clients: Sequence[str] = ("sglang",)
    pairs: int = 3
    check_prompts: int = 8
    check_tokens: int = 64
    seed: int = 7
    ready_timeout_s: float = 1800.0
    client_timeout_s: float = 3600.0
    vocab_size: int = 248320
    dtype: str = "float32"
    num_steps: int = 3
    notes: str = ""

    def __post_init__(self) -> None:
        where = f"profile {self.name}"
        if self.engine not in ENGINES:
            raise ValueError(f"{where}: engine {self.engine!r}: one of {ENGINES}")
        if self.model is None and self.engine != "stand-in":
            raise ValueError(f"{where}: only engine 'stand-in' makes its own model")
        if len(self.concurrency) != len(self.requests) or not self.concurrency:
            raise ValueError(f"{where}: one number of requests for each concurrency")
        for name in ("tp", "pairs", "input_tokens", "output_tokens", "check_prompts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{where}: {name} {getattr(self, name)}: from 1")
        if min(*self.concurrency, *self.requests, 1) < 1:
            raise ValueError(f"{where}: concurrency and requests: from 1")
        if len(set(self.concurrency)) != len(self.concurrency):
            raise ValueError(f"{where}: a concurrency is named twice")
        for client in self.clients:
            if client not in CLIENTS:
                known = ", ".join(CLIENTS)
                raise ValueError(f"{where}: client {client!r}: choose from {known}")
        if self.dataset is not None and not Path(self.dataset).is_file():
            raise ValueError(f"--dataset {self.dataset}: no such file")

    def to_dict(self) -> dict[str, Any]:
        """Every setting as plain data."""
        return {
            key: list(value) if isinstance(value, (list, tuple)) else value
            for key, value in asdict(self).items()
        }


def profile_names() -> list[str]:
    """The profiles that this repository brings."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_profile(name: str, **changes: Any) -> Profile:
    """A profile by name or by the path of a TOML file; `changes` that are not None
    replace its settings. ValueError says what is wrong with it."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        known = ", ".join(profile_names())
        raise ValueError(
            f"profile {name!r}: no such profile; choose from {known}, or name a .toml"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"profile {path}: {error}") from None
    unknown = sorted(set(data) - {item.name for item in fields(Profile)})
    if unknown:
        raise ValueError(f"profile {path}: unknown settings {', '.join(unknown)}")
    data |= {key: value for key, value in changes.items() if value is not None}
    try:
        return Profile(**({"name": path.stem} | data))
    except TypeError as error:
        raise ValueError(f"profile {path}: {error}") from None
