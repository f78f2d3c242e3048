"""The packed draft kernels on one GPU, against what they take the place of.

Times (CUDA graphs, cold L2) of the local reduction and the merge, of ``torch.argmax``
and of SGLang's topk=1 kernel on the gathered row; the reduction's bandwidth as a share
of the card's copy bandwidth; and the memory of a dense and a packed step. A row's
gather is stood in for by a local copy of the same size: a collective needs more GPUs
(``bench_transport.py``). Runs with torch and Triton alone; SGLang's kernel is then
left out, and the output says so.
"""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any, Callable, Dict, NamedTuple, Optional

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import gpu_timing as gpu  # noqa: E402

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUICK_ROWS = (1, 64)
RANKS_OF_WIDTH = {18992: 8, 31040: 8, 62080: 4, 128256: 1}
"""V/TP of 151936/8, 248320/8, 248320/4 and 128256/1."""
TIMED = ("local", "merge", "local_and_merge", "gathered_argmax", "dense_topk1")


class Ops(NamedTuple):
    """``shard_winner``'s module, and SGLang's topk=1 kernel where it is installed."""

    packed: Any
    topk1: Optional[Callable[..., Any]]


def load_ops() -> Ops:
    package = "sglang.kernels.ops.speculative"
    packed = importlib.import_module(f"{package}.shard_winner")
    try:
        topk1 = importlib.import_module(f"{package}.topk1").draft_topk1_postprocess
    except ModuleNotFoundError:
        topk1 = None
    return Ops(packed, topk1)


class Shape:
    """One row count and width: the inputs, and the steps on them."""

    def __init__(
        self, ops: Ops, rows: int, width: int, ranks: int, device: str = "cuda"
    ):
        self.ops, self.rows, self.width, self.ranks = ops, rows, width, ranks
        self.logits = torch.randn(rows, width, device=device).bfloat16()
        self.tokens = torch.zeros(rows, 4, dtype=torch.int64, device=device)
        self.positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self.words = self.local().repeat(max(ranks, 2), 1)
        self.gathered = torch.randn(rows, width * ranks, device=device)

    def local(self) -> torch.Tensor:
        return self.ops.packed.shard_winner(
            self.logits, valid_width=self.width, vocab_start=0
        )

    def merge(self, words: Optional[torch.Tensor] = None) -> Any:
        return self.ops.packed.merge_shard_winners(
            self.words if words is None else words,
            rows=self.rows,
            vocab_size=self.width,
            draft_tokens=self.tokens,
            column=1,
            positions=self.positions,
        )

    def local_and_merge(self) -> Any:
        return self.local(), self.merge()

    def gathered_argmax(self) -> torch.Tensor:
        return self.gathered.argmax(dim=-1)

    def dense_topk1(self) -> Any:
        return self.ops.topk1(self.gathered, self.positions, self.tokens, 1)

    def packed_step(self) -> Any:
        """With a local copy for the exchange."""
        return self.merge(self.local().repeat(self.ranks, 1))

    def dense_step(self) -> Any:
        """As SGLang's: gathered row, FP32 copy, selection."""
        full = self.logits.repeat(1, self.ranks).float()
        if self.ops.topk1 is None:
            return full.argmax(dim=-1)
        return self.ops.topk1(full, self.positions, self.tokens, 1)


def measure_shape(shape: Shape, copy: float, flush: torch.Tensor) -> Dict[str, Any]:
    names = [n for n in TIMED if n != "dense_topk1" or shape.ops.topk1 is not None]
    times = {name: gpu.timed(getattr(shape, name), flush) for name in names}
    read = shape.logits.numel() * shape.logits.element_size()
    rate = read / (times["local"]["median_us"] * 1e-6)
    return {
        "rows": shape.rows,
        "width": shape.width,
        "ranks": shape.ranks,
        "dtype": "bf16",
        **times,
        "local_bytes_per_s": rate,
        "local_share_of_copy_rate": rate / copy,
        "memory": {
            "dense": gpu.peak_bytes(shape.dense_step),
            "packed": gpu.peak_bytes(shape.packed_step),
        },
    }


def show(shape: Dict[str, Any]) -> None:
    medians = "  ".join(
        f"{name} {shape[name]['median_us']:.1f} us" for name in TIMED if name in shape
    )
    share = shape["local_share_of_copy_rate"]
    print(
        f"{shape['width']:>6} x {shape['rows']:<3} {medians}  {share:.0%} of copy",
        flush=True,
    )


def time_all(rows: tuple = ROWS) -> Dict[str, Any]:
    """Every width and row count; prints a line for each."""
    ops = load_ops()
    if ops.topk1 is None:
        print("dense_topk1 is left out: SGLang is not installed")
    flush = torch.empty(gpu.FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    one = torch.zeros(1, device="cuda")
    copy = gpu.copy_rate(flush)
    shapes = []
    for width, ranks in RANKS_OF_WIDTH.items():
        for count in rows:
            shape = Shape(ops, count, width, ranks)
            shapes.append(found := measure_shape(shape, copy, flush))
            show(found)
    return {
        "copy_bytes_per_s": copy,
        # What a graph of one tiny kernel takes: part of every time below.
        "one_tiny_kernel": gpu.timed(lambda: one.add_(1), flush),
        "shapes": shapes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = HERE.parents[1] / "build/bench/shard_winner.json"
    parser.add_argument("--quick", action="store_true", help="1 and 64 rows only")
    parser.add_argument("--output", type=Path, default=default)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit(
            "bench_shard_winner: no CUDA device, and a CPU's times say nothing about "
            "these kernels; run it on a machine with a GPU"
        )
    print(json.dumps(gpu.hardware()))
    timing = time_all(QUICK_ROWS if args.quick else ROWS)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    results = {"hardware": gpu.hardware(), "timing": timing}
    args.output.write_text(json.dumps(results, indent=1) + "\n")
    print(args.output)


if __name__ == "__main__":
    main()
