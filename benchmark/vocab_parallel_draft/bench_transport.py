"""Where the packed path wins, by transport and row count: writes the table of ``auto``.

Run on the machines that will serve, one process a rank:

    torchrun --nproc-per-node 4 benchmark/vocab_parallel_draft/bench_transport.py

GPUs if there are enough of them, else gloo on the CPU.
"""

import argparse
import os
import platform
import sys
from pathlib import Path
from typing import Any, Dict, List

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import msgspec  # noqa: E402
import transport_ranks as ranks  # noqa: E402
from sampling_layer_ranks import Limits  # noqa: E402
from selection_steps import HEAD_PADDING  # noqa: E402

import sglang  # noqa: E402
from sglang.srt.layers.vocab_parallel_draft_table import (  # noqa: E402
    SCHEMA,
    VARIABLE,
    Measurement,
    RowTimes,
    Setting,
    Table,
    device_name,
    read_table,
    winning_rows,
)
from sglang.test.kits.tp_group_kit import init_group  # noqa: E402

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUICK_ROWS = (1, 8, 64)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", type=int, nargs="+", default=[248320])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--dtype", default="bfloat16", help="of the head's output")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: by machine")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a case")
    parser.add_argument("--quick", action="store_true", help="1, 8 and 64 rows, 0.5 s")
    parser.add_argument(
        "--output",
        type=Path,
        default=HERE.parents[1] / "build" / "bench" / "draft_table.json",
        help="a table that is there already keeps its other settings",
    )
    args = parser.parse_args()
    if args.quick:
        args.rows, args.seconds = list(QUICK_ROWS), 0.5
    args.rows = sorted(set(args.rows))
    return args


def rank_of_torchrun() -> Dict[str, int]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in names if name not in os.environ]
    if missing or os.environ["WORLD_SIZE"] == "1":
        sys.exit(
            "bench_transport: start it with torchrun and 2 ranks or more, e.g. torchrun "
            f"--nproc-per-node 2 {Path(__file__).name}"
        )
    return {name: int(os.environ[name]) for name in names}


def device_of(args: argparse.Namespace, local_ranks: int) -> str:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = args.device or ("cuda" if gpus >= local_ranks else "cpu")
    if device == "cuda" and gpus < local_ranks:
        sys.exit(
            f"bench_transport: {local_ranks} ranks need as many GPUs, this machine has "
            f"{gpus}; start fewer ranks or use --device cpu"
        )
    return device


def versions() -> Dict[str, str]:
    return {
        "sglang": sglang.__version__,
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "torch_threads": str(torch.get_num_threads()),
    }


def measure(args: argparse.Namespace, group: Any, device: str) -> List[Measurement]:
    limits = Limits(
        warm_up_seconds=min(0.2, args.seconds),
        seconds=args.seconds,
        block_seconds=0.05,
        min_pairs=5,
        max_pairs=200,
        max_block=50,
    )
    found = []
    for vocab in args.vocab:
        by_transport = ranks.measure(
            group, device, vocab, args.dtype, args.rows, limits
        )
        width = -(-vocab // HEAD_PADDING) * HEAD_PADDING // group.world_size
        for transport, rows in by_transport.items():
            setting = Setting(
                transport, group.world_size, device_name(device), args.dtype, width
            )
            times = msgspec.convert(rows, List[RowTimes])
            found.append(Measurement(setting, versions(), times))
    return found


def merged(path: Path, found: List[Measurement]) -> Table:
    """The table at ``path``, if there is one, with the new measurements."""
    new = [measurement.setting for measurement in found]
    kept = read_table(str(path)).measurements if path.exists() else []
    return Table(SCHEMA, [m for m in kept if m.setting not in new] + found)


def show(measurement: Measurement) -> None:
    print(f"\n{measurement.setting}")
    print("| rows | dense, us | packed, us | exchange, us | packed wins |")
    print("| ---: | ---: | ---: | ---: | --- |")
    for row in measurement.rows:
        times = [row.dense_us, row.packed_us, row.exchange_us]
        cells = [f"{t.median:.1f} ({t.p10:.1f} to {t.p90:.1f})" for t in times if t]
        wins = "yes" if row.packed_wins else "no"
        print(f"| {row.rows} | " + " | ".join([*cells, wins]) + " |")
    print(f"packed rows: {winning_rows(measurement.rows)}", flush=True)


def main() -> None:
    args = arguments()
    torchrun = rank_of_torchrun()
    device = device_of(args, torchrun["LOCAL_WORLD_SIZE"])
    torch.set_num_threads(1)
    # A table that cannot be extended fails before minutes of measuring.
    merged(args.output, [])
    group = init_group(
        torchrun["RANK"], torchrun["WORLD_SIZE"], torchrun["LOCAL_RANK"], device
    )
    with torch.inference_mode():
        found = measure(args, group, device)
    if torchrun["RANK"] == 0:
        for measurement in found:
            show(measurement)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        table = msgspec.json.encode(merged(args.output, found))
        args.output.write_bytes(msgspec.json.format(table, indent=1) + b"\n")
        print(f"\n{args.output}; serve with {VARIABLE}={args.output}")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
