"""Up to how many rows ``shard_winner_few_rows.py`` is the faster one, on a CPU.

A reduction and a merge, without the exchange, in turn with the implementation for any
number of rows. Several ranks run at once, as they do in a server.
"""

import argparse
from statistics import median, quantiles
from typing import Dict, List

import few_rows_ranks

from sglang.test.kits.gloo_ranks_kit import run_ranks


def ratios(seconds: Dict[str, List[float]]) -> List[float]:
    """How many times faster than the other one it was in every round."""
    return [a / b for a, b in zip(seconds["any rows"], seconds["few rows"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 8])
    parser.add_argument(
        "--width", type=int, nargs="+", default=[8000, 37984, 62080], help="of a shard"
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--block", type=int, default=20, help="steps of a round")
    args = parser.parse_args()
    print("| columns | rows | any rows, us | few rows, us | ratio | 10 to 90 % |")
    print("| ---: | ---: | ---: | ---: | ---: | --- |")
    for width in args.width:
        for rows in args.rows:
            case = (rows, width, args.rounds, args.block)
            options = dict(threads=args.threads)
            per_rank = run_ranks(few_rows_ranks.measure, args.ranks, *case, **options)
            both = [
                median(t for times in per_rank for t in times[name]) * 1e6
                for name in ("any rows", "few rows")
            ]
            all_ratios = [ratio for times in per_rank for ratio in ratios(times)]
            low, *_, high = quantiles(all_ratios, n=10)
            print(
                f"| {width} | {rows} | {both[0]:.0f} | {both[1]:.0f} "
                f"| {median(all_ratios):.2f} | {low:.2f} to {high:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
