"""Which tile of rows and columns ``shard_winner`` should work on at a time, on a CPU.

Several ranks run at once, as they do in a server: they share the caches.
"""

import argparse
import itertools
from statistics import median

import workspace_ranks

from sglang.test.kits.gloo_ranks_kit import run_ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--width", type=int, default=62080)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    settings = [
        dict(
            WORKSPACE_ELEMENTS=1 << elements,
            _MIN_CHUNK_COLUMNS=least,
            BLOCK=block,
        )
        for elements, least, block in itertools.product(
            (16, 17, 18, 19, 20), (512, 1024, 2048), (128, 256)
        )
    ]
    print("| rows | ms | workspace | least columns | block |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for rows in args.rows:
        per_rank = run_ranks(
            workspace_ranks.measure,
            args.ranks,
            rows,
            args.width,
            settings,
            args.rounds,
            threads=args.threads,
        )
        means = [
            sum(median(times) for times in rank_times) / args.ranks
            for rank_times in zip(*per_rank)
        ]
        for mean, setting in sorted(zip(means, settings), key=lambda pair: pair[0]):
            values = " | ".join(str(value) for value in setting.values())
            print(f"| {rows} | {mean * 1e3:.3f} | {values} |", flush=True)


if __name__ == "__main__":
    main()
