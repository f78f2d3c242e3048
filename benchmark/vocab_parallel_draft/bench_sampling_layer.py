"""Dense against packed selection of draft tokens over gloo ranks.

Both arms run in turn in the same processes, on the same logits, over the process
groups that SGLang builds.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Dict, List

import sampling_layer_ranks as ranks
import sampling_layer_report as reporting
import torch
from selection_steps import Case

from sglang.test.kits.gloo_ranks_kit import run_ranks

HERE = Path(__file__).resolve().parent
VOCABS = (32000, 151936, 248320)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tp", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--vocab", type=int, nargs="+", default=list(VOCABS))
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--dtype", default="bfloat16", help="of the head's output")
    parser.add_argument("--threads", type=int, default=1, help="torch threads a rank")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a case")
    parser.add_argument(
        "--quick", action="store_true", help="TP 4, largest V, 1, 8 and 64 rows"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=HERE.parents[1] / "build" / "bench",
        help="folder of sampling-layer-tp*.{json,md,png}",
    )
    args = parser.parse_args()
    if args.quick:
        args.tp, args.vocab, args.rows = [4], [VOCABS[-1]], [1, 8, 64]
    return args


def run(args: argparse.Namespace, tp: int) -> Dict:
    limits = ranks.Limits(
        warm_up_seconds=0.2,
        seconds=args.seconds,
        block_seconds=0.08,
        min_pairs=9,
        max_pairs=400,
        max_block=20,
    )
    started = time.time()
    report = {
        "machine": reporting.machine(),
        "load_before": os.getloadavg()[0],
        "threads": args.threads,
        "dtype": args.dtype,
        "tp": tp,
        "results": [],
    }
    print(json.dumps(report["machine"]), flush=True)
    for vocab in args.vocab:
        report["results"] += _cases(args, tp, vocab, limits)
    report["seconds"] = round(time.time() - started, 1)
    return report


def _cases(args: argparse.Namespace, tp: int, vocab: int, limits) -> List[Dict]:
    cases = [Case(rows, vocab, args.dtype) for rows in args.rows]
    per_rank = run_ranks(
        ranks.measure, tp, cases, limits, timeout_s=600, threads=args.threads
    )
    summaries = []
    for case, results in zip(cases, zip(*per_rank)):
        summary = reporting.summarise({"tp": tp, **case._asdict()}, list(results))
        summaries.append(summary)
        print(
            f"TP {tp} V {vocab} rows {case.rows}: dense "
            f"{summary['dense_ms']['median']:.2f} ms, packed "
            f"{summary['packed_ms']['median']:.2f} ms, "
            f"{summary['ratio']['median']:.1f} times faster",
            flush=True,
        )
    return summaries


def main() -> int:
    args = arguments()
    torch.set_num_threads(1)
    args.output.mkdir(parents=True, exist_ok=True)
    for tp in args.tp:
        report = run(args, tp)
        path = args.output / f"sampling-layer-tp{tp}.json"
        path.write_text(json.dumps(report, indent=2) + "\n")
        path.with_suffix(".md").write_text(reporting.markdown(report))
        reporting.chart(report, path.with_suffix(".png"))
        print(f"{path} (and .md, .png), {report['seconds']} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
