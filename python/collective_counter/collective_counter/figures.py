"""What the draft steps of a phase cost, from the counters of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collective_counter.table import KINDS, SCOPES, RankCounters

_DRAFT = SCOPES.index("draft_logits")
_CALLS, _BYTES, _ROWS = range(3)


@dataclass(frozen=True)
class DraftFigures:
    """Vocabulary collectives of draft steps, per rank.

    `rows` are the rows of the calls (padded rows on the packed path), `head_rows`
    the rows that the draft head computed. Bytes are all-gather output bytes.
    """

    steps: int
    collectives: int
    output_bytes: int
    rows: int
    head_rows: int
    ranks_agree: bool

    @property
    def collectives_per_step(self) -> float | None:
        """1.0 with TP, 0.0 without; None when no draft step ran."""
        return _ratio(self.collectives, self.steps)

    @property
    def bytes_per_token(self) -> float | None:
        """Output bytes per row of the call; None when nothing was gathered."""
        return _ratio(self.output_bytes, self.rows)

    @property
    def bytes_per_real_row(self) -> float | None:
        """Output bytes per row of the draft head; None when no draft step ran."""
        return _ratio(self.output_bytes, self.head_rows)


def draft_figures(counters: Sequence[RankCounters]) -> DraftFigures:
    """Figures of rank 0, and whether every rank counted the same.

    Raises ValueError for an empty list.
    """
    if not counters:
        raise ValueError("no counters")
    per_rank = [_rank_figures(rank) for rank in counters]
    steps, collectives, output_bytes, rows, head_rows = per_rank[0]
    return DraftFigures(
        steps=steps,
        collectives=collectives,
        output_bytes=output_bytes,
        rows=rows,
        head_rows=head_rows,
        ranks_agree=all(figures == per_rank[0] for figures in per_rank),
    )


def _rank_figures(rank: RankCounters) -> tuple[int, int, int, int, int]:
    vocabulary: np.ndarray = rank.cells[_DRAFT]
    gathers = vocabulary[KINDS.index("all_gather")]
    return (
        int(rank.head_calls[_DRAFT]),
        int(vocabulary[:, _CALLS].sum()),
        int(gathers[_BYTES]),
        int(gathers[_ROWS]),
        int(rank.head_rows[_DRAFT]),
    )


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
