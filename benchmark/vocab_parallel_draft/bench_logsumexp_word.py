"""What the log-sum-exp costs: reduction, exchange and merge of three words a row against
the same of two, over gloo ranks on a CPU.

Both run in turn in the same processes, on the same logits, and have to choose the same
tokens first. The ratio is taken per pair.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any, Dict, List

import logsumexp_word_ranks
from sampling_layer_ranks import Limits
from sampling_layer_report import machine, median_interval, spread
from selection_steps import Case

from sglang.test.kits.gloo_ranks_kit import run_ranks

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "bench" / "logsumexp-word.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tp", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--dtype", default="bfloat16", help="of the head's output")
    parser.add_argument("--threads", type=int, default=1, help="torch threads a rank")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a case")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    return parser.parse_args()


def summarise(case: Case, per_rank: List[Dict[str, Any]]) -> Dict[str, Any]:
    """One case over all ranks: a step lasts as long as its slowest rank needs."""
    times = {
        arm: [max(pair) for pair in zip(*(rank[f"{arm}_s"] for rank in per_rank))]
        for arm in ("two", "three")
    }
    ratios = [three / two for two, three in zip(*times.values())]
    return {
        **case._asdict(),
        "pairs": len(ratios),
        "steps_a_block": per_rank[0]["block"],
        **{f"{arm}_ms": spread([1e3 * s for s in times[arm]]) for arm in times},
        "ratio": {**spread(ratios), "median_95": median_interval(ratios)},
    }


def main() -> None:
    args = arguments()
    limits = Limits(
        warm_up_seconds=0.2,
        seconds=args.seconds,
        block_seconds=0.05,
        min_pairs=9,
        max_pairs=400,
        max_block=20,
    )
    on, load = machine(), os.getloadavg()[0]
    print(json.dumps(on), flush=True)
    cases = [Case(rows, args.vocab, args.dtype) for rows in args.rows]
    per_rank = run_ranks(
        logsumexp_word_ranks.measure,
        args.tp,
        cases,
        limits,
        timeout_s=600,
        threads=args.threads,
    )
    results = [summarise(case, list(r)) for case, r in zip(cases, zip(*per_rank))]
    print(
        f"TP {args.tp}, V {args.vocab}, {args.dtype}: 3 words (12 bytes a row) to 2 (8)"
    )
    print("| rows | 2 words, ms | 3 words, ms | ratio | p10 to p90 | pairs |")
    print("| ---: | ---: | ---: | ---: | --- | ---: |")
    for row in results:
        two, three, ratio = row["two_ms"], row["three_ms"], row["ratio"]
        print(
            f"| {row['rows']} | {two['median']:.3f} | {three['median']:.3f} "
            f"| {ratio['median']:.2f} | {ratio['p10']:.2f} to {ratio['p90']:.2f} "
            f"| {row['pairs']} |"
        )
    report = {
        "machine": on,
        "load_before": load,
        "tp": args.tp,
        "threads": args.threads,
        "results": results,
    }
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(json.dumps(report, indent=2) + "\n")
    print(args.output)


if __name__ == "__main__":
    main()
