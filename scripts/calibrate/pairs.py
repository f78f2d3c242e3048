"""Shards that a server wrote, as pairs of predicted and observed acceptance."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch


@dataclass(frozen=True)
class Pairs:
    """Verifies of chains, each a row.

    `logits` FP64 `[n, positions]`: log-odds of each drafted token's exact probability,
    NaN past the row's own number of drafts. `correct` int64 `[n]`: drafts that the
    target took from the left.
    """

    logits: np.ndarray
    correct: np.ndarray

    def __len__(self) -> int:
        return len(self.correct)

    @property
    def positions(self) -> int:
        """Drafts of the longest chain."""
        return self.logits.shape[1]

    def at(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Log-odds and outcome (0.0 or 1.0) at a position, counted from 0.

        Only rows whose drafts before it were all taken: at the others the target never
        said what it thinks of this one.
        """
        drafted = ~np.isnan(self.logits[:, position])
        seen = drafted & (self.correct >= position)
        return self.logits[seen, position], (self.correct[seen] > position) * 1.0

    @property
    def widths(self) -> np.ndarray:
        """int64 `[n]`: drafts of each row."""
        return (~np.isnan(self.logits)).sum(axis=1)

    def halves(self) -> tuple[Pairs, Pairs]:
        """The earlier rows to fit on, the later ones to report on, of every width.

        By time and not by chance: rows of one request resemble each other, and most of
        them stay in one half.
        """
        groups = [np.flatnonzero(self.widths == w) for w in np.unique(self.widths)]
        early = np.concatenate([group[: len(group) // 2] for group in groups])
        late = np.concatenate([group[len(group) // 2 :] for group in groups])
        return self._rows(early), self._rows(late)

    def _rows(self, rows: np.ndarray) -> Pairs:
        return Pairs(self.logits[rows], self.correct[rows])


def read_pairs(pattern: str, num_steps: int | None = None) -> Pairs:
    """All shards that match a glob pattern, also of several widths.

    Raises ValueError naming the pattern or the file: no shards, not a shard, or a chain
    longer than `num_steps`.
    """
    paths = sorted(map(Path, glob.glob(pattern)), key=_written_order)
    if not paths:
        raise ValueError(
            f"--shards {pattern!r}: no such files. Start a server with "
            "--speculative-draft-confidence and SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH=stem, "
            "send it requests, and give 'stem.*.pt' (quoted)"
        )
    return join([_read_shard(path, num_steps) for path in paths])


def join(shards: Sequence[Pairs]) -> Pairs:
    """One set of rows; shorter chains are padded with NaN."""
    width = max(shard.positions for shard in shards)
    logits = [
        np.pad(
            shard.logits,
            ((0, 0), (0, width - shard.positions)),
            constant_values=np.nan,
        )
        for shard in shards
    ]
    return Pairs(np.concatenate(logits), np.concatenate([s.correct for s in shards]))


def _written_order(path: Path) -> tuple[int, str]:
    """Shard 10 comes after shard 9; replicas write theirs side by side."""
    stem, _, number = path.stem.rpartition(".")
    return (int(number), stem) if number.isdigit() else (0, path.stem)


def _read_shard(path: Path, num_steps: int | None) -> Pairs:
    try:
        shard = torch.load(path, map_location="cpu", weights_only=True)
        logits, taken = shard["logits"].double(), shard["prefix_mask"].double()
        if logits.dim() != 2 or logits.shape != taken.shape:
            raise ValueError(f"shapes {list(logits.shape)} and {list(taken.shape)}")
    except Exception as error:
        raise ValueError(
            f"--shards: {path} holds no logits and prefix_mask [n, steps] as a collecting "
            f"server writes them ({type(error).__name__}: {error})"
        ) from error
    if num_steps is not None and logits.shape[1] > num_steps:
        raise ValueError(
            f"--shards: {path} has chains of {logits.shape[1]} drafts, more than "
            f"--num-steps {num_steps}"
        )
    if not torch.isfinite(logits).all():
        raise ValueError(f"--shards: {path} has logits that are not finite")
    return Pairs(logits.numpy(), taken.sum(dim=1).long().numpy())
