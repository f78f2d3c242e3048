"""`python -m scripts.demo`: run both arms, print a table, write the report."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.demo.charts import draw_charts
from scripts.demo.inputs import check_inputs, prompts_for
from scripts.demo.measure import run_arm
from scripts.demo.report import build_report
from scripts.demo.settings import ARMS, ROOT, Settings
from scripts.demo.table import render
from scripts.serving import ServerError, interruptible
from scripts.serving.client import RequestFailed
from scripts.serving.hardware import describe
from scripts.serving.models import read_config
from scripts.small_model.prepare import prepare_model
from scripts.small_model.spec import DTYPES, ModelSpec

EXIT_CHECKS_FAILED, EXIT_ERROR, EXIT_INTERRUPTED = 1, 2, 130


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers with commas") from None


def _order(text: str) -> tuple[str, ...]:
    arms = tuple(text.split(","))
    for arm in arms:
        if arm not in ARMS:
            raise argparse.ArgumentTypeError(f"{arm!r}: choose from {', '.join(ARMS)}")
    return arms


def _listed(values: Sequence[object]) -> str:
    return ",".join(map(str, values))


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Defaults are the whole demo."""
    base = Settings(Path(), Path(), Path(), vocab_size=ModelSpec.vocab_size)
    parser = argparse.ArgumentParser(
        prog="demo",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model-path", type=Path, help="serve this model; default: make a small one")
    add("--vocab-size", type=int, default=base.vocab_size, help="of the small model")
    add("--dtype", choices=sorted(DTYPES), default=base.dtype)
    add("--tp", type=int, default=base.tp, help="tensor-parallel ranks")
    add("--num-steps", type=int, default=base.num_steps, help="draft steps a round")
    add(
        "--order",
        type=_order,
        default=_listed(base.order),
        help="arm of each server start",
    )
    add("--concurrency", type=_numbers, default=_listed(base.concurrency))
    add(
        "--requests",
        type=_numbers,
        default=_listed(base.requests),
        help="per concurrency",
    )
    add("--rounds", type=int, default=base.rounds, help="of each phase, per start")
    add("--output-tokens", type=int, default=base.output_tokens, help="per request")
    add("--seed", type=int, default=base.seed, help="of the prompts")
    add("--port", type=int, help="default: a free one")
    add("--ready-timeout-s", type=float, default=base.ready_timeout_s)
    add("--fork", type=Path, default=ROOT / "build" / "fork", help="fork tree")
    add("--out", type=Path, default=ROOT / "build" / "demo", help="report folder")
    return parser.parse_args(argv)


def say(text: str) -> None:
    """One progress line, with the time since the start."""
    print(f"{time.monotonic() - _START:6.0f} s  {text}", flush=True)


_START = time.monotonic()


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Every server start in turn. Raises ValueError, ServerError or RequestFailed."""
    spec = ModelSpec(vocab_size=args.vocab_size, dtype=args.dtype)
    model_path = prepare_model(args.model_path, spec, say)
    options = vars(args) | {
        "model_path": model_path.resolve(),
        "vocab_size": read_config(model_path)["vocab_size"],
        "fork": args.fork.resolve(),
        "out": args.out.resolve(),
    }
    settings = Settings(**options)
    check_inputs(settings)
    settings.out.mkdir(parents=True, exist_ok=True)
    prompts = prompts_for(settings)
    runs = [
        run_arm(settings, arm, index, prompts, say)
        for index, arm in enumerate(settings.order)
    ]
    report = build_report(settings, runs, describe())
    (settings.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    draw_charts(report, settings.out)
    return report


def main(argv: list[str] | None = None) -> int:
    """0; 1 when a check failed; 2 for bad input or a server that failed; 130 after
    Ctrl-C or SIGTERM. No server outlives it."""
    args = parse_args(argv)
    try:
        with interruptible():
            report = run(args)
    except (ValueError, FileExistsError, ServerError, RequestFailed) as error:
        print(f"demo: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("demo: interrupted, every server was stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(f"\n{render(report)}\n")
    say(f"report and charts in {args.out}")
    return 0 if all(report["checks"].values()) else EXIT_CHECKS_FAILED


if __name__ == "__main__":
    sys.exit(main())
