"""What every load generator is given and gives back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar


class ClientError(RuntimeError):
    """A client that is missing, failed, or left no result; the message says which."""


@dataclass(frozen=True)
class Load:
    """One run: `requests` requests, `concurrency` in flight, greedy, fixed lengths.

    Prompts are random token ids of `seed`, or come from `dataset`, a ShareGPT-style JSON.
    """

    concurrency: int
    requests: int
    input_tokens: int
    output_tokens: int
    seed: int
    dataset: Path | None = None


@dataclass(frozen=True)
class Latency:
    """Milliseconds over the requests of one run."""

    median: float
    mean: float
    p99: float


@dataclass(frozen=True)
class Result:
    """What a client measured in one run. `tpot_ms` is (end to end - TTFT) / (tokens - 1)
    of each request; `errors` counts requests without a full answer."""

    completed: int
    errors: int
    error_messages: list[str]
    duration_s: float
    output_tokens: int
    output_tok_per_s: float
    request_per_s: float
    ttft_ms: Latency
    tpot_ms: Latency
    e2e_ms: Latency

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Client(ABC):
    """A load generator that runs as a process of its own."""

    name: ClassVar[str]

    @abstractmethod
    def version(self) -> str:
        """Its version; ClientError, with what to do, when it cannot be run."""

    @abstractmethod
    def command(self, load: Load, url: str, model: str, folder: Path) -> list[str]:
        """The command that runs `load` against `url` and writes into `folder`."""

    @abstractmethod
    def read(self, load: Load, folder: Path) -> Result:
        """The result of a run that ended; ClientError when it left none."""
