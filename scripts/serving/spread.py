"""Median and range of samples of one quantity."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """Median and range of samples of one quantity."""

    median: float
    min: float
    max: float
    samples: list[float]

    @classmethod
    def of(cls, samples: Iterable[float]) -> Spread:
        """ValueError when there are none."""
        values = list(samples)
        if not values:
            raise ValueError("no samples")
        return cls(median(values), min(values), max(values), values)

    def to_dict(self) -> dict:
        return asdict(self)
