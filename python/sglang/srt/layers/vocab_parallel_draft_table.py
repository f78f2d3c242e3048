"""Measurements that tell ``auto`` for which row counts the packed path wins.

``benchmark/vocab_parallel_draft/bench_transport.py`` writes the file (JSON, ``Table``),
``SGLANG_VOCAB_PARALLEL_DRAFT_TABLE`` names it, and rank 0 reads it once, before any
graph is captured. What it finds is broadcast, so that no two ranks can choose apart.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated, Any, Dict, List, Optional, Tuple

import msgspec
import torch

from sglang.srt.environ import envs
from sglang.srt.layers.vocab_parallel_draft_eligibility import DenseReason

SCHEMA = "vocab_parallel_draft_table/1"
VARIABLE = envs.SGLANG_VOCAB_PARALLEL_DRAFT_TABLE.name

_Positive = Annotated[int, msgspec.Meta(gt=0)]
_Microseconds = Annotated[float, msgspec.Meta(gt=0)]


class Times(msgspec.Struct, frozen=True):
    """Microseconds of a step: median, 10th and 90th percentile."""

    median: _Microseconds
    p10: _Microseconds
    p90: _Microseconds

    def __post_init__(self):
        if not self.p10 <= self.median <= self.p90:
            raise ValueError("p10, median and p90 are not in order")


class RowTimes(msgspec.Struct, frozen=True):
    """A dense and a packed step of ``rows`` rows, measured in turn.

    ``exchange_us`` is the packed step's collective alone, for people to read.
    """

    rows: _Positive
    dense_us: Times
    packed_us: Times
    exchange_us: Optional[Times] = None

    @property
    def packed_wins(self) -> bool:
        """Each median lies outside of the other's spread, on the right side."""
        packed, dense = self.packed_us, self.dense_us
        return packed.p90 < dense.median and packed.median < dense.p10


class Setting(msgspec.Struct, frozen=True):
    """What decides how fast a step is. ``width``: columns of a rank's shard."""

    transport: str
    world_size: _Positive
    device: str
    dtype: str
    width: _Positive

    def __str__(self) -> str:
        fields = msgspec.structs.asdict(self).items()
        return ", ".join(f"{name}={value}" for name, value in fields)


class Measurement(msgspec.Struct, frozen=True):
    """The steps of one setting, by rising row count."""

    setting: Setting
    versions: Dict[str, str]
    rows: Annotated[List[RowTimes], msgspec.Meta(min_length=1)]

    def __post_init__(self):
        counts = [times.rows for times in self.rows]
        if counts != sorted(set(counts)):
            raise ValueError("row counts do not rise")


class Table(msgspec.Struct, frozen=True):
    """The file."""

    schema: str
    measurements: List[Measurement]

    def __post_init__(self):
        if self.schema != SCHEMA:
            raise ValueError(f"schema is {self.schema!r}, not {SCHEMA!r}")
        settings = [measurement.setting for measurement in self.measurements]
        doubled = {str(s) for s in settings if settings.count(s) > 1}
        if doubled:
            raise ValueError(f"measured twice: {'; '.join(sorted(doubled))}")


class PackedRows(msgspec.Struct, frozen=True):
    """Row counts that go packed: inclusive ranges. Frozen before graph capture."""

    ranges: Tuple[Tuple[int, int], ...]

    def __contains__(self, rows: int) -> bool:
        return any(low <= rows <= high for low, high in self.ranges)

    def __str__(self) -> str:
        spans = (f"{a}" if a == b else f"{a} to {b}" for a, b in self.ranges)
        return " and ".join(spans) or "none"


class Choice(msgspec.Struct, frozen=True):
    """What ``auto`` does, the same on every rank. ``error``: the table is unusable."""

    packed_rows: Optional[PackedRows] = None
    reason: Optional[DenseReason] = None
    note: str = ""
    error: str = ""


def read_table(path: str) -> Table:
    """The validated table.

    Raises:
        ValueError: no such file, not JSON, or not this schema.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Table)
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise ValueError(
            f"{VARIABLE}={path} cannot be used: {error}. Write the table with "
            "benchmark/vocab_parallel_draft/bench_transport.py, or unset the variable"
        ) from error


def applicable(table: Table, setting: Setting) -> Optional[Measurement]:
    """The widest measurement of the setting that is not wider than its head.

    A wider shard adds more to a dense step (``world_size`` shards are sent and read)
    than to a packed one (one is read), so that where packed wins, it goes on winning.
    """
    fitting = [
        measurement
        for measurement in table.measurements
        if measurement.setting.width <= setting.width
        and msgspec.structs.replace(measurement.setting, width=setting.width) == setting
    ]
    return max(fitting, key=lambda m: m.setting.width, default=None)


def winning_rows(rows: List[RowTimes]) -> PackedRows:
    """Ranges whose ends were measured, with every measured count inside winning.

    What lies outside, or beside a count that does not win, was not shown to win.
    """
    ranges: List[Tuple[int, int]] = []
    extends = False
    for times in rows:
        if times.packed_wins:
            low = ranges.pop()[0] if extends else times.rows
            ranges.append((low, times.rows))
        extends = times.packed_wins
    return PackedRows(tuple(ranges))


def choose(path: Optional[str], setting: Setting) -> Choice:
    """What the table at ``path`` says about ``setting``."""
    not_measured = DenseReason.NOT_MEASURED
    if not path:
        return Choice(reason=not_measured, note=f"{VARIABLE} is not set")
    try:
        measurement = applicable(read_table(path), setting)
    except ValueError as error:
        return Choice(error=str(error))
    if measurement is None:
        return Choice(reason=not_measured, note=f"{path} has nothing for {setting}")
    packed_rows = winning_rows(measurement.rows)
    note = f"measured at width {measurement.setting.width} in {path}"
    if not packed_rows.ranges:
        return Choice(reason=DenseReason.MEASURED_SLOWER, note=note)
    return Choice(packed_rows=packed_rows, note=note)


def agreed_choice(group: Any, setting: Setting) -> Choice:
    """Rank 0's choice, on every rank of ``group``. Collective.

    Raises:
        ValueError: on every rank, if rank 0 cannot use its table.
    """
    choice = None
    if group.rank_in_group == 0:
        choice = choose(envs.SGLANG_VOCAB_PARALLEL_DRAFT_TABLE.get(), setting)
    choice = group.broadcast_object(choice, src=0)
    if choice.error:
        raise ValueError(choice.error)
    return choice


def setting_of(runner: Any, group: Any, transport: str) -> Setting:
    """The setting of a draft model's head in ``group``."""
    model = runner.model
    in_fp32 = getattr(model.logits_processor, "use_fp32_lm_head", False)
    dtype = torch.float32 if in_fp32 else runner.dtype
    return Setting(
        transport=transport,
        world_size=group.world_size,
        device=device_name(runner.device),
        dtype=str(dtype).removeprefix("torch."),
        width=model.lm_head.shard_indices.num_elements_padded,
    )


def device_name(device: str) -> str:
    """The GPU's or the CPU's model name."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(names, "").strip() or platform.machine()
