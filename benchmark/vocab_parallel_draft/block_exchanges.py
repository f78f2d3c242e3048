"""Vocabulary exchanges of a block of DFlash, Domino and DSpark, dense and packed.

Counts what goes through SGLang's group while its dense units and the packed ones draft the
same blocks in gloo ranks of this machine. Counts and bytes follow from shapes alone.
"""

import argparse
from typing import Any, Dict, List, Tuple

from sglang.test.kits import dflash_rank_kit, domino_rank_kit, dspark_rank_kit
from sglang.test.kits.gloo_ranks_kit import run_ranks

Counts = Dict[str, Tuple[int, int]]
Row = Tuple[str, int, Counts, Counts]

DSPARK_HEADS = {
    "DSpark, vanilla, gated, RNN": "rnn",
    "DSpark, DeepSeek-V4, whole": "v4",
    "DSpark, DeepSeek-V4, sharded": "v4_sharded",
}


def main() -> None:
    options = parse_arguments()
    rows = dflash(options) + domino(options) + dspark(options)
    print(
        f"TP{options.tp}, {options.vocab} tokens, BF16, {options.bs} requests, a block. "
        "Bytes are the output of a rank's collectives.\n"
    )
    header = ("draft", "tokens", "dense", "bytes", "packed", "bytes", "broadcasts")
    print("| " + " | ".join(header) + " |")
    print("| --- | " + " | ".join(["---:"] * (len(header) - 1)) + " |")
    for name, tokens, dense, packed in rows:
        cells = (
            f"{name} | {tokens} | {cell(dense)} | {cell(packed)} | {broadcasts(packed)}"
        )
        print(f"| {cells} |")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tp", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--bs", type=int, default=8)
    return parser.parse_args()


def cell(counts: Counts) -> str:
    """Vocabulary collectives and their bytes; the broadcast of tokens is not one."""
    kinds = [counts[kind] for kind in ("all_gather", "all_reduce") if kind in counts]
    return f"{sum(c for c, _ in kinds)} | {sum(b for _, b in kinds):,}"


def broadcasts(counts: Counts) -> str:
    count, nbytes = counts.get("broadcast", (0, 0))
    return f"{count} ({nbytes:,} bytes)" if count else "0"


def first_rank(function: Any, options: argparse.Namespace, **case: Any) -> Any:
    case = dict(vocab=options.vocab, bs=options.bs, dtype="bfloat16", seed=0) | case
    return run_ranks(function, options.tp, [case])[0][0]["counts"]


def dflash(options: argparse.Namespace) -> List[Row]:
    counts = first_rank(dflash_rank_kit.blocks, options, whole=False)
    tokens = dflash_rank_kit.BLOCK - 1
    return [("DFlash", tokens, counts["dense_graph"], counts["packed_graph"])]


def domino(options: argparse.Namespace) -> List[Row]:
    counts = first_rank(domino_rank_kit.chains, options, whole=False, pool=2048)
    tokens = domino_rank_kit.BLOCK - 1
    return [
        ("Domino, pool of 2048", tokens, counts["dense_pool"], counts["packed_graph"]),
        (
            "Domino, few rows, eager",
            tokens,
            counts["dense_gather"],
            counts["packed"],
        ),
    ]


def dspark(options: argparse.Namespace) -> List[Row]:
    rows = []
    for name, kind in DSPARK_HEADS.items():
        counts = first_rank(
            dspark_rank_kit.blocks, options, kind=kind, head_dtype="bfloat16"
        )
        rows.append((name, dspark_rank_kit.GAMMA, counts["dense"], counts["packed"]))
    return rows


if __name__ == "__main__":
    main()
