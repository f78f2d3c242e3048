"""The cases of draft trees on their Triton kernels, in Triton's interpreter.

On CUDA tensors the kernels are the default, so the CUDA class of ``test_shard_topk.py``
runs them there. The interpreter has to be chosen before Triton is imported: this file
runs itself in a second process and reports each case by its name.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from sglang.kernels.ops.speculative.shard_winner import shard_winner
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits.shard_topk_kit import ShardTopkCase, reference_topk
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=90, suite="base-a-test-cpu")

sys.path.insert(0, str(Path(__file__).resolve().parent))
topk = importlib.import_module("test_shard_topk")
selection, numerics = topk.selection, topk.numerics

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    from sglang.kernels.ops.speculative import shard_topk_triton as launch
    from sglang.kernels.ops.speculative import shard_winner_triton as winner

CHILD_SECONDS = 900
INF, NAN = float("inf"), float("nan")
SPECIALS = (0.0, -0.0, 1.0, 30.0, -30.0, 1e4, -1e4, INF, -INF, NAN)
# A program is a row, and costs the interpreter more than its columns do.
TOO_MANY_ROWS = (
    "test_random_rows_of_every_k",
    "test_random_rows",
    "test_many_chunks_of_columns_and_rows",
    "test_equal_maxima_take_the_smallest_id",
    "test_nan_in_one_tile_of_rows_only",
    "test_ranks_of_minus_infinity_beside_finite_ones",
)


class KernelCases:
    """What depends on how the kernels split and address their work."""

    def test_special_values_in_small_chunks(self):
        # Red if a winner, a sum, a NaN or a first id is lost between the lanes of a
        # chunk, the chunks of a row, or the chunks that are looked at again.
        random = np.random.default_rng(0)
        for example in range(24):
            rows, vocab = int(random.integers(1, 6)), int(random.integers(16, 1500))
            values = random.standard_normal((rows, vocab)) * random.choice([1, 20, 1e4])
            chosen = random.choice(SPECIALS, (rows, vocab))
            share = random.choice([0.0, 1.5 / vocab, 0.3, 1.0], (rows, 1))
            values = np.where(random.random((rows, vocab)) < share, chosen, values)
            logits = torch.from_numpy(values).to(selection.DTYPES[example % 3])
            cuts = sorted(random.integers(0, vocab + 1, int(random.integers(0, 4))))
            edges = [0, *map(int, cuts), vocab]
            small = mock.patch.multiple(winner, WARPS=1, VECTOR_BYTES=8)
            with self.subTest(example=example), small:
                self.check_topk(
                    logits,
                    list(zip(edges, edges[1:])),
                    k=topk.KS[example % len(topk.KS)],
                    row_gap=example % 3,
                )

    def test_softcap_before_the_order(self):
        # Red if the second look at a chunk leaves the softcap out: its saturated logits
        # tie, and the smallest ids come first. The interpreter's tanh is a substitute,
        # so that the values are compared within a last bit.
        logits = selection.random_logits(2, 3000)
        logits[:, [900, 300, 301, 2999]] = torch.tensor([5e3, 4e3, 4.5e3, 6e3])
        found = self.select_topk(logits, k=4, softcap=30.0)
        self.assertEqual(found.token_ids.tolist(), [[300, 301, 900, 2999]] * 2)
        expected = reference_topk(logits, 4, 30.0)
        torch.testing.assert_close(
            found.logits.double(), expected.logits, rtol=2e-6, atol=0
        )
        torch.testing.assert_close(
            found.logsumexp.double(), expected.logsumexp, rtol=2e-5, atol=0
        )

    def test_row_offsets_past_31_bits(self):
        # Red if the second look computes a row's offset in 32 bits: row 2 would be
        # read 2^32 elements before its place, where this buffer holds other values.
        stride, rows = 2**30 + 64, 3
        elements = 2**31 + rows * stride
        try:
            buffer = torch.empty(elements, dtype=torch.float16, device=self.device)
        except RuntimeError as error:
            self.skipTest(f"no {elements * 2} bytes of address space: {error}")
        logits = buffer.as_strided((rows, 64), (stride, 1), 2**31)
        logits.copy_(selection.random_logits(rows, 64) - 1000)
        wrapped = buffer[2 * stride - 2**31 :][:64]
        wrapped.copy_(torch.arange(64))
        words = shard_winner(logits, valid_width=64, vocab_start=0, k=2, impl=self.impl)
        expected = reference_topk(logits, 2)
        self.assertTrue(torch.equal(words[:2, :rows].double(), expected.logits.T))
        ids = topk.bits_of(words)[3:, :rows]
        self.assertTrue(torch.equal(ids, expected.token_ids.T.int()))


def interpreted_cases() -> type:
    """The suite of the torch path and the kernels' own cases, on CPU tensors."""
    cases = (
        KernelCases,
        topk.TopkCases,
        selection.SelectionCases,
        selection.ShardCases,
        numerics.SpecialValueCases,
        ShardTopkCase,
    )
    skipped = dict.fromkeys(TOO_MANY_ROWS)
    return type("InterpretedCases", cases, {"impl": "triton", **skipped})


def run_interpreted(results: Path) -> None:
    """Run every case in this process; one line of JSON each, as it ends."""
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    winner.PROGRAM_ROWS = 64
    # The interpreter's upcast of BF16 loses subnormals: left to the GPU.
    numerics.DTYPES = (torch.float16, torch.float32)
    cases = interpreted_cases()
    with results.open("w", buffering=1) as file:
        for name in unittest.defaultTestLoader.getTestCaseNames(cases):
            result = cases(name).run(unittest.TestResult())
            problems = [trace for _, trace in result.failures + result.errors]
            skipped = [reason for _, reason in result.skipped]
            file.write(json.dumps([name, problems, skipped]) + "\n")


@unittest.skipUnless(HAS_TRITON, "Triton is not installed")
class TestTopkKernelsInInterpreter(CustomTestCase):
    """Each method reports one case of the second process."""

    @classmethod
    def setUpClass(cls):
        environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.jsonl"
            child = subprocess.run(
                [sys.executable, __file__, str(results)],
                env=environment,
                capture_output=True,
                text=True,
                timeout=CHILD_SECONDS,
            )
            lines = results.read_text().splitlines() if results.exists() else []
        outcomes = [json.loads(line) for line in lines]
        cls.outcomes = {name: rest for name, *rest in outcomes}
        cls.ending = f"exit status {child.returncode}\n{child.stderr[-4000:]}"

    def report(self, name):
        if name not in self.outcomes:
            self.fail(f"the interpreter's process ended before {name}: {self.ending}")
        problems, skipped = self.outcomes[name]
        self.assertFalse(problems, "\n".join(problems))
        if skipped:
            self.skipTest(skipped[0])


def report_case(name):
    return lambda self: self.report(name)


for _name in unittest.defaultTestLoader.getTestCaseNames(interpreted_cases()):
    setattr(TestTopkKernelsInInterpreter, _name, report_case(_name))


@unittest.skipUnless(HAS_TRITON, "Triton is not installed")
class TestChunks(CustomTestCase):
    def test_every_column_has_a_lane(self):
        # Red if a wide shard has more chunks than lanes, or its last one is left out.
        for width in (0, 1, 1024, 1025, 31040, 124160, 131104, 10**6):
            for block in (512, 1024):
                chunks = launch.chunks_of(width, block)
                with self.subTest(width=width, block=block):
                    self.assertGreaterEqual(chunks.lanes, chunks.count)
                    self.assertGreaterEqual(chunks.count * block, width)
                    self.assertLess((chunks.count - 1) * block, max(width, 1))

    def test_too_many_columns_are_refused(self):
        # Red if columns past the last lane are left out without an error.
        with self.assertRaisesRegex(ValueError, "at most 2097152 columns"):
            launch.chunks_of(launch.MAX_LANES * 512 + 1, 512)


if __name__ == "__main__":
    if len(sys.argv) == 2 and os.environ.get("TRITON_INTERPRET") == "1":
        run_interpreted(Path(sys.argv[1]))
    else:
        unittest.main()
