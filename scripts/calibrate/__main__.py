"""`python -m scripts.calibrate`: is the draft's probability right, and what does it save?"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from scripts.calibrate.diagram import draw
from scripts.calibrate.inputs import check_inputs, prepare, prompts_for, read_prompts
from scripts.calibrate.measure import ArmRun, run_arm
from scripts.calibrate.pairs import read_pairs
from scripts.calibrate.positions import fit_positions
from scripts.calibrate.report import build_report
from scripts.calibrate.settings import ROOT, Settings
from scripts.calibrate.table import render
from scripts.calibrate.temperatures import write_temperatures
from scripts.serving import ServerError, interruptible
from scripts.serving.client import RequestFailed
from scripts.serving.hardware import describe

EXIT_CHECKS_FAILED, EXIT_ERROR, EXIT_INTERRUPTED = 1, 2, 130
_START = time.monotonic()


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Defaults are the whole calibration of the small model."""
    base = Settings(Path(), Path(), Path())
    parser = argparse.ArgumentParser(
        prog="calibrate",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--shards", metavar="PATTERN", help="only read these shards; starts no server")
    add(
        "--out", type=Path, default=ROOT / "build" / "calibration", help="report folder"
    )
    add("--model-path", type=Path, help="serve this model; default: make a small one")
    add("--prompts", type=Path, help="text file, a prompt a line; default: fixed ids")
    add("--server-args", type=shlex.split, help="instead of the CPU engine's")
    add("--adaptive-config", type=Path, help="of both policies; default: SGLang's")
    add("--fork", type=Path, default=ROOT / "build" / "fork", help="fork tree")
    add("--order", type=_order, default=",".join(base.order), help="arm of each start")
    add("--port", type=int, help="default: a free one")
    add("--ready-timeout-s", type=float, default=base.ready_timeout_s)
    for name, text in {
        "tp": "tensor-parallel ranks",
        "num_steps": "drafts of the longest chain",
        "initial_steps": "drafts that the adaptive arms start with",
        "pairs_requests": "for the fit",
        "pairs_concurrency": "of those",
        "requests": "of a round, for the policies",
        "concurrency": "of those",
        "rounds": "a server start",
        "prompt_tokens": "of the fixed prompts",
        "output_tokens": "a request",
        "seed": "of the fixed prompts",
    }.items():
        flag = "--" + name.replace("_", "-")
        add(flag, type=int, default=getattr(base, name), help=text)
    return parser.parse_args(argv)


def _order(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def say(text: str) -> None:
    """One progress line, with the time since the start."""
    print(f"{time.monotonic() - _START:6.0f} s  {text}", flush=True)


def from_shards(args: argparse.Namespace) -> dict[str, Any]:
    """Report and temperatures of a server's own shards."""
    pairs = read_pairs(args.shards)
    fits = fit_positions(pairs.halves()[0])
    write_temperatures(args.out / "temperatures.json", fits, pairs, args.shards)
    return build_report(pairs, fits, hardware=describe(), source=args.shards)


def from_servers(args: argparse.Namespace) -> dict[str, Any]:
    """Every server start in turn. Raises ValueError, ServerError or RequestFailed."""
    options = {
        name: value
        for name, value in vars(args).items()
        if name in Settings.__dataclass_fields__
    }
    model_path = args.model_path or prepare(ROOT / "build" / "models" / "two-classes")
    options["model_path"] = model_path
    # A link is kept: the report names what was asked for.
    paths = ("model_path", "out", "fork")
    settings = Settings(**options | {name: options[name].absolute() for name in paths})
    check_inputs(settings)
    source = "fixed prompts" if args.prompts is None else str(args.prompts)
    if args.prompts is None:
        prompts = prompts_for(settings, settings.requests, settings.seed)
        for_pairs = prompts_for(settings, settings.pairs_requests, settings.seed + 1)
    else:
        both = settings.requests + settings.pairs_requests
        lines = read_prompts(args.prompts, both)
        prompts, for_pairs = lines[: settings.requests], lines[settings.requests :]
    for stale in settings.shard_stem.parent.glob(f"{settings.shard_stem.name}.*.pt"):
        stale.unlink()
    settings.out.mkdir(parents=True, exist_ok=True)
    runs: list[ArmRun] = []
    for index, arm in enumerate(settings.order):
        label = f"{index}-{arm}"
        collects = index == 0
        runs.append(
            run_arm(settings, arm, label, prompts, for_pairs if collects else (), say)
        )
        if collects:
            pairs = runs[0].pairs
            fits = fit_positions(pairs.halves()[0])
            write_temperatures(settings.temperatures_path, fits, pairs, source)
    return build_report(
        pairs,
        fits,
        settings=settings,
        runs=runs,
        prompts=prompts,
        hardware=describe(),
        source=source,
    )


def main(argv: list[str] | None = None) -> int:
    """0; 1 when a check failed; 2 for bad input or a server that failed; 130 after
    Ctrl-C or SIGTERM. No server outlives it."""
    args = parse_args(argv)
    try:
        with interruptible():
            report = from_shards(args) if args.shards else from_servers(args)
    except (ValueError, FileExistsError, ServerError, RequestFailed) as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("calibrate: interrupted, every server was stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(report, args.out)
    print(f"\n{render(report)}\n")
    say(f"report, temperatures and diagrams in {args.out}")
    return 0 if all(report["checks"].values()) else EXIT_CHECKS_FAILED


if __name__ == "__main__":
    sys.exit(main())
