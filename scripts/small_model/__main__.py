"""`python -m scripts.small_model --out FOLDER`: make a model, or measure one."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import fields
from pathlib import Path
from statistics import mean

import torch

from scripts.small_model.folder import load_model, make_prompts, write_model
from scripts.small_model.simulate import generate
from scripts.small_model.spec import DTYPES, ModelSpec


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """One option per field of `ModelSpec`."""
    parser = argparse.ArgumentParser(prog="small_model", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="model folder")
    parser.add_argument("--tp", type=int, help="check that this TP size works")
    parser.add_argument(
        "--simulate",
        type=int,
        metavar="N",
        default=0,
        help="also report accept length over N prompts, without a server",
    )
    for field in fields(ModelSpec):
        name = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(name, action="store_true")
        elif field.name == "dtype":
            parser.add_argument(name, choices=sorted(DTYPES), default=field.default)
        else:
            kind = type(field.default)
            parser.add_argument(name, type=kind, default=field.default)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, or 2 with one line on stderr."""
    args = parse_args(argv)
    start = time.perf_counter()
    try:
        spec = ModelSpec(**{f.name: getattr(args, f.name) for f in fields(ModelSpec)})
        if args.tp is not None:
            spec.check_tp(args.tp)
        folder = write_model(spec, args.out)
    except (ValueError, FileExistsError) as error:
        print(f"small_model: {error}", file=sys.stderr)
        return 2
    print(f"{folder}: ready in {time.perf_counter() - start:.1f} s")
    if args.simulate:
        report_simulation(folder, spec, args.simulate)
    return 0


def report_simulation(folder: Path, spec: ModelSpec, count: int) -> None:
    """Print accept length and diversity over `count` prompts."""
    torch.set_num_threads(2)
    model = load_model(folder)
    prompts = make_prompts(spec, count, length=16, seed=spec.seed)
    runs = [generate(model, prompt, num_tokens=64, num_steps=3) for prompt in prompts]
    accept = [run.accept_length for run in runs]
    distinct = [len(set(run.output_ids)) for run in runs]
    print(
        f"accept length {mean(accept):.2f} ({min(accept):.2f} to {max(accept):.2f}), "
        f"{min(distinct)} to {max(distinct)} distinct tokens of 64"
    )


if __name__ == "__main__":
    sys.exit(main())
