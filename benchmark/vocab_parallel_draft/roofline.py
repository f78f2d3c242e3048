"""Predicted cost of a dense and a packed selection: bytes, launches, microseconds.

``python roofline.py`` prints the tables of ``docs/roofline.md``; ``--write`` puts them
there. Predictions, not measurements: the formula and its inputs are on that page.
"""

import argparse
from pathlib import Path
from typing import List, NamedTuple

PAGE = Path(__file__).resolve().parents[2] / "docs/roofline.md"
BEGIN, END = "<!-- roofline.py: begin -->\n", "<!-- roofline.py: end -->\n"

VOCAB, RANKS, HEAD_BYTES = 248320, 4, 2
"""Qwen3.5's vocabulary, BF16 logits."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WORD_BYTES = 4
WORDS = 3
SPLIT_BELOW = 528
"""Fewer rows are split over the vocabulary, at the price of a second local launch."""


class Host(NamedTuple):
    """Rates of one device. Latencies in microseconds, rates in bytes a second."""

    name: str
    memory: float
    link: float
    """Of one rank, one direction."""
    dense_collective: float
    packed_collective: float
    launch: float
    """From one dependent kernel to the next; on a CPU, one torch operation."""
    reorders: bool
    """The gather leaves ranks stacked, so that a copy puts the columns side by side."""
    packed_operations: int = 0
    """Torch operations of a packed step on a CPU; 0: kernels as on a GPU."""


HOSTS = (
    Host("H100 SXM, NVLink", 3.35e12, 450e9, 4, 4, 2, False),
    Host("H20, NVLink", 4.0e12, 450e9, 4, 4, 2, False),
    Host("H100 PCIe, no NVLink", 2.0e12, 64e9, 20, 20, 2, True),
    Host("CPU, gloo", 460.8e9 / RANKS, 460.8e9 / RANKS / 4, 220, 220, 5, True, 54),
)


class Cost(NamedTuple):
    """Of one step on one rank, after the head."""

    memory_bytes: int
    link_bytes: int
    launches: int
    microseconds: float


def dense(host: Host, rows: int) -> Cost:
    row = VOCAB * HEAD_BYTES
    # Gather's output, its reordered copy, the FP32 copy, and the argmax of that.
    passes = row + (2 * row if host.reorders else 0) + row + 2 * VOCAB * 4
    link = row * (RANKS - 1) // RANKS
    # Gather, reorder, FP32 copy, and SGLang's topk=1 kernels: partial and final.
    launches = 4 + host.reorders
    return _cost(host, rows * passes, rows * link, launches, host.dense_collective)


def packed(host: Host, rows: int) -> Cost:
    padded = -(-rows // 4) * 4
    words = WORDS * WORD_BYTES * padded
    shard = rows * VOCAB // RANKS * HEAD_BYTES
    # The shard, the words written, gathered and read; id, logit, log-sum-exp written.
    passes = shard + words + 2 * words * RANKS + 16 * rows
    local = 2 if rows < SPLIT_BELOW else 1
    launches = host.packed_operations or local + 2
    link = words * (RANKS - 1)
    return _cost(host, passes, link, launches, host.packed_collective)


def _cost(host: Host, memory: int, link: int, launches: int, collective: float) -> Cost:
    seconds = memory / host.memory + link / host.link
    fixed = launches * host.launch + collective
    return Cost(memory, link, launches, fixed + 1e6 * seconds)


def table(host: Host) -> List[str]:
    lines = [
        f"### {host.name}",
        "",
        "| rows | dense: memory, link, launches | us | packed: memory, link, launches "
        "| us | predicted gain |",
        "| ---: | --- | ---: | --- | ---: | ---: |",
    ]
    for rows in ROWS:
        old, new = dense(host, rows), packed(host, rows)
        gain = old.microseconds / new.microseconds
        lines.append(
            f"| {rows} | {_traffic(old)} | {old.microseconds:.1f} | {_traffic(new)} "
            f"| {new.microseconds:.1f} | {gain:.1f} |"
        )
    return [*lines, ""]


def _traffic(cost: Cost) -> str:
    memory, link = _size(cost.memory_bytes), _size(cost.link_bytes)
    return f"{memory}, {link}, {cost.launches}"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def tables() -> str:
    lines = [line for host in HOSTS for line in table(host)]
    return "\n".join(lines)


def page_with_tables(page: str) -> str:
    """The page with what stands between its two marks replaced."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    if parser.parse_args().write:
        PAGE.write_text(page_with_tables(PAGE.read_text()))
    else:
        print(tables())


if __name__ == "__main__":
    main()
