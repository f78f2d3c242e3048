"""`python -m scripts.ab PROFILE`: measure dense against packed and write a report."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from scripts.ab.attached import parse_attach
from scripts.ab.clients import CLIENTS, ClientError
from scripts.ab.plan import sides_of
from scripts.ab.profile import Profile, load_profile, profile_names
from scripts.ab.report import write_report
from scripts.ab.runner import Options, run
from scripts.serving import RequestFailed, ServerError, cpu_engine, interruptible
from scripts.serving.cpu_engine import ROOT

EXIT_NOT_COMPARABLE, EXIT_ERROR, EXIT_INTERRUPTED = 1, 2, 130
_START = time.monotonic()


def say(text: str) -> None:
    """One progress line, with the time since the start."""
    print(f"{time.monotonic() - _START:6.0f} s  {text}", flush=True)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers with commas") from None


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """A profile and what to change in it; `--` passes the rest to both servers."""
    parser = argparse.ArgumentParser(prog="ab", description=__doc__)
    add = parser.add_argument
    add("profile", nargs="?", help=f"one of {', '.join(profile_names())}, or a .toml")
    add("--model-path", help="model folder or repository id instead of the profile's")
    add("--tp", type=int)
    add("--vocab-size", type=int, help="of the small model")
    add("--client", help=f"{', '.join(CLIENTS)}, or both with a comma")
    add("--aiperf", default="aiperf", metavar="PATH", help="the aiperf program")
    add("--concurrency", type=_numbers, help="such as 1,2,4,8")
    add("--requests", type=_numbers, help="one number for each concurrency")
    add("--input-tokens", type=int)
    add("--output-tokens", type=int)
    add("--dataset", help="ShareGPT-style JSON instead of random tokens")
    add("--pairs", type=int, help="server starts of each side")
    add("--seed", type=int)
    add("--port", type=int, help="of the servers; default: a free one each")
    add("--out", type=Path, help="default: build/ab/PROFILE")
    served = parser.add_mutually_exclusive_group()
    served.add_argument(
        "--fork", type=Path, default=cpu_engine.FORK, help="tree to serve"
    )
    served.add_argument(
        "--installed", action="store_true", help="serve the installed wheel instead"
    )
    add(
        "--attach",
        action="append",
        default=[],
        metavar="SIDE=URL",
        help="do not start a server, use this one; twice",
    )
    add("--null", action="store_true", help="dense on both sides: shows the noise")
    add("--fresh", action="store_true", help="drop the runs of an earlier call")
    add("--stop-after", type=int, metavar="N", help="server starts; run again to go on")
    add("--report-only", action="store_true", help="no server: report what is there")
    argv = list(sys.argv[1:] if argv is None else argv)
    split = argv.index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:split])
    args.server_args = argv[split + 1 :]
    return args


def profile_of(args: argparse.Namespace) -> Profile:
    """The profile with the command line's changes. ValueError says what is wrong."""
    if args.profile is None:
        raise ValueError(f"PROFILE: choose from {', '.join(profile_names())}")
    changes = {
        "model": args.model_path,
        "clients": args.client.split(",") if args.client else None,
        "dataset": str(Path(args.dataset).resolve()) if args.dataset else None,
    }
    for name in ("tp", "vocab_size", "concurrency", "requests", "pairs", "seed"):
        changes[name] = getattr(args, name)
    for name in ("input_tokens", "output_tokens"):
        changes[name] = getattr(args, name)
    if args.server_args:
        base = load_profile(args.profile)
        changes["args"] = [*base.args, *args.server_args]
    return load_profile(args.profile, **changes)


def main(argv: list[str] | None = None) -> int:
    """0; 1 when the runs allow no verdict; 2 for bad input or what failed; 130 after
    Ctrl-C or SIGTERM. No server outlives it."""
    args = parse_args(argv)
    try:
        profile = profile_of(args)
        suffix = "-null" if args.null else ""
        out = args.out or ROOT / "build" / "ab" / f"{profile.name}{suffix}"
        options = Options(
            out=out.resolve(),
            fork=None if args.installed else args.fork.resolve(),
            port=args.port,
            null=args.null,
            fresh=args.fresh,
            stop_after=args.stop_after,
            aiperf=args.aiperf,
            attach=parse_attach(args.attach, sides_of(args.null)),
        )
        if not args.report_only:
            with interruptible():
                run(profile, options, say)
        report = write_report(options.out)
    except (ValueError, ServerError, ClientError, RequestFailed) as error:
        print(f"ab: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        print(
            "ab: interrupted, every server was stopped; run again to go on",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED
    print(f"\n{report['verdict']}\n")
    say(f"report.json, report.md, report.html and raw/ in {options.out}")
    return 0 if report["comparable"] or not report["complete"] else EXIT_NOT_COMPARABLE


if __name__ == "__main__":
    sys.exit(main())
