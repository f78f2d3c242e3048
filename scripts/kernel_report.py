"""Compile every Triton kernel for sm_90 and sm_100, without a GPU.

``make kernel-report`` writes ``build/kernel_report.json``, a list of ``{"kernel",
"arch", "registers", "spills", "shared_bytes"}`` (spills: bytes of local memory a
thread), and fails when a kernel spills. Needs torch and Triton only.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("TRITON_CACHE_DIR", str(ROOT / "build/triton_cache"))
sys.path.insert(0, str(ROOT / "scripts"))

import torch  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from bare_sglang import use_bare_sglang  # noqa: E402

if __name__ == "__main__":
    use_bare_sglang()

from sglang.kernels.ops.speculative import (  # noqa: E402
    shard_topk_kernels,
    shard_topk_triton,
    shard_winner_kernels,
    shard_winner_triton,
)

ARCHES = (90, 100)
RANKS = (2, 4, 8)
WINNERS = (4, 8, 16)
# Columns of a shard: 248320 over 2 ranks, the most lanes of a known model.
TOPK_WIDTH = 124160
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class Variant(NamedTuple):
    """One binary that a launch can ask for."""

    name: str
    function: Any
    pointers: dict[str, str]
    constants: dict[str, Any]
    multiples_of_16: tuple[str, ...]
    warps: int


def shard_variants() -> Iterator[Variant]:
    counts = [1 << i for i in range(shard_winner_triton.UNROLL.bit_length())]
    for name, dtype in DTYPES.items():
        for softcap in (False, True):
            for count in counts:
                for aligned in (True, False):
                    yield shard_variant(name, dtype, softcap, count, aligned)


def shard_variant(
    name: str, dtype: torch.dtype, softcap: bool, count: int, aligned: bool
) -> Variant:
    """``aligned``: rows start at 16 bytes, so that they are loaded as vectors."""
    label = ",".join(
        [name, "softcap" if softcap else "plain", f"count={count}"]
        + ([] if aligned else ["unaligned"])
    )
    return Variant(
        f"shard_kernel[{label}]",
        shard_winner_kernels.shard_kernel,
        {"logits": f"*{name}", "out": "*fp32", "cap": "fp32"},
        {
            "SOFTCAP": softcap,
            "ROWS": shard_winner_triton.PROGRAM_ROWS,
            "BLOCK": shard_winner_triton.block_columns(dtype),
            "COUNT": count,
            "INTERPRET": False,
        },
        ("logits", "out", "width", "row_stride") if aligned else ("out",),
        shard_winner_triton.WARPS,
    )


def merge_variants() -> Iterator[Variant]:
    constants = {
        "ROWS": shard_winner_triton.PROGRAM_ROWS,
        "LANES": shard_winner_triton.MAX_SPLITS,
    }
    pointers = {"partials": "*fp32", "words": "*fp32"}
    yield Variant(
        "combine_kernel",
        shard_winner_kernels.combine_kernel,
        pointers,
        constants,
        tuple(pointers),
        1,
    )
    for ranks in RANKS:
        for writes in ((), ("positions",), ("draft_tokens", "positions")):
            yield merge_variant(ranks, writes)


# What a merge may write in place, and its strides of 1, constants of a binary.
MERGE_WRITES = {
    "draft_tokens": {"draft_column_stride": 1},
    "positions": {"position_stride": 1},
}


def merge_variant(ranks: int, writes: tuple[str, ...]) -> Variant:
    """``writes``: the buffers that the merge updates as well."""
    pointers = {"gathered": "*fp32", "token_ids": "*i64"}
    pointers |= {"logits": "*fp32", "logsumexps": "*fp32"}
    constants = {"row_stride": 1, "TP": ranks, "BLOCK": shard_winner_triton.MERGE_ROWS}
    for buffer, strides in MERGE_WRITES.items():
        if buffer in writes:
            pointers[buffer] = "*i64"
            constants |= strides
        else:
            constants[buffer] = None
    label = ",".join([f"tp={ranks}", *writes])
    return Variant(
        f"merge_kernel[{label}]",
        shard_winner_kernels.merge_kernel,
        pointers,
        constants,
        tuple(pointers),
        1,
    )


def topk_variants() -> Iterator[Variant]:
    """What a draft tree adds: the launches with ``k`` > 1."""
    for name, dtype in DTYPES.items():
        for softcap in (False, True):
            for k in WINNERS:
                yield pick_variant(name, dtype, softcap, k)
    for ranks in RANKS:
        for k in WINNERS:
            yield merge_topk_variant(ranks, k)


def pick_variant(name: str, dtype: torch.dtype, softcap: bool, k: int) -> Variant:
    block = shard_winner_triton.block_columns(dtype)
    lanes = shard_topk_triton.chunks_of(TOPK_WIDTH, block).lanes
    kind = "softcap" if softcap else "plain"
    return Variant(
        f"pick_kernel[{name},{kind},k={k},lanes={lanes}]",
        shard_topk_kernels.pick_kernel,
        {
            "logits": f"*{name}",
            "partials": "*fp32",
            "words": "*fp32",
            "cap": "fp32",
        },
        {
            "K": k,
            "SLOTS": triton.next_power_of_2(k),
            "LANES": lanes,
            "CHUNK": block,
            "SOFTCAP": softcap,
            "INTERPRET": False,
        },
        ("logits", "partials", "words", "row_stride"),
        shard_topk_triton.PICK_WARPS,
    )


def merge_topk_variant(ranks: int, k: int) -> Variant:
    pointers = {"gathered": "*fp32", "token_ids": "*i64", "positions": "*i64"}
    pointers |= {"logits": "*fp32", "logsumexps": "*fp32"}
    constants = {"row_stride": 1, "position_stride": 1, "K": k, "TP": ranks}
    constants |= {"SLOTS": triton.next_power_of_2(k), "RANKS": ranks}
    return Variant(
        f"merge_topk_kernel[tp={ranks},k={k}]",
        shard_topk_kernels.merge_topk_kernel,
        pointers,
        constants,
        tuple(pointers),
        1,
    )


def measure(variant: Variant, arch: int, **options: Any) -> dict[str, Any]:
    """Compile for ``sm_<arch>`` and read what the binary uses."""
    names = variant.function.arg_names
    signature = {
        name: (
            "constexpr"
            if name in variant.constants
            else variant.pointers.get(name, "i32")
        )
        for name in names
    }
    attributes = {
        (names.index(name),): [["tt.divisibility", 16]]
        for name in variant.multiples_of_16
    }
    compiled = triton.compile(
        ASTSource(variant.function, signature, variant.constants, attributes),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": variant.warps, **options},
    )
    usage = resource_usage(compiled.asm["cubin"])
    return {
        "kernel": variant.name,
        "arch": f"sm_{arch}",
        "registers": usage["REG"],
        # Nothing here has a local array: what lies in local memory was spilled.
        "spills": usage["STACK"] + usage["LOCAL"],
        "shared_bytes": compiled.metadata.shared,
    }


def resource_usage(cubin: bytes) -> dict[str, int]:
    """``REG``, ``STACK``, ``LOCAL`` ... of the one kernel in a binary."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = re.search(r"REG:\d+ .*", done.stdout + done.stderr)
    if line is None:
        raise RuntimeError(f"{CUOBJDUMP} reported no resource usage: {done.stdout}")
    return {key: int(size) for key, size in re.findall(r"(\w+):(\d+)", line[0])}


def main() -> None:
    report = []
    for variant in [*shard_variants(), *merge_variants(), *topk_variants()]:
        for arch in ARCHES:
            report.append(row := measure(variant, arch))
            print(
                f"{row['kernel']:<46} {row['arch']:<7} {row['registers']:>3} registers"
                f" {row['spills']:>4} B spilled {row['shared_bytes']:>5} B shared",
                flush=True,
            )
    path = ROOT / "build/kernel_report.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{len(report)} kernels compiled with Triton {triton.__version__}: {path}")
    if spilling := [f"{r['kernel']} {r['arch']}" for r in report if r["spills"]]:
        sys.exit("kernel_report: these kernels spill: " + ", ".join(spilling))


if __name__ == "__main__":
    main()
