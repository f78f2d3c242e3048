"""The cases of the packed draft words on their Triton kernels.

Without a GPU the kernels run in Triton's interpreter, which has to be chosen before
Triton is imported: this file then runs itself in a second process and reports each
case by its name. On CUDA tensors the kernels are the default, so the CUDA classes of
the two files beside this one run them too.
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

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    padded_rows,
    shard_winner,
)
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.kits.shard_winner_kit import (
    ShardWinnerCase,
    assert_matches_reference,
    reference_selection,
)
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=90, suite="base-a-test-cpu")
register_cuda_ci(est_time=120, stage="base-b", runner_config="1-gpu-small")

sys.path.insert(0, str(Path(__file__).resolve().parent))
selection = importlib.import_module("test_shard_winner")
numerics = importlib.import_module("test_shard_winner_numerics")

HAS_TRITON = importlib.util.find_spec("triton") is not None
if HAS_TRITON:
    from sglang.kernels.ops.speculative import shard_winner_triton as launch

CHILD_SECONDS = 900
# Only the cases whose names contain it run in the interpreter; the others then fail.
ONLY_CASES = os.environ.get("SHARD_WINNER_ONLY_CASES", "")
# Relative: a division within 2 FP32 steps, a tanh within 2, a product.
SOFTCAP_TOLERANCE = 2.0**-20
INF, NAN = float("inf"), float("nan")
SPECIALS = (0.0, -0.0, 1.0, 30.0, -30.0, 1e4, -1e4, INF, -INF, NAN)


class KernelCases:
    """What depends on how the kernels split and address their work."""

    def test_special_values_in_small_chunks(self):
        # Red if a chunk's maximum, sum, NaN or first id is lost between the blocks of
        # a lane, the lanes of a chunk, or the chunks of a row.
        small = dict(WARPS=1, VECTOR_BYTES=8, UNROLL=2, TARGET_PROGRAMS=40)
        random = np.random.default_rng(0)
        for example in range(24):
            rows, vocab = int(random.integers(1, 10)), int(random.integers(1, 2000))
            values = random.standard_normal((rows, vocab)) * random.choice([1, 20, 1e4])
            chosen = random.choice(SPECIALS, (rows, vocab))
            share = random.choice([0.0, 1.5 / vocab, 0.3, 1.0], (rows, 1))
            values = np.where(random.random((rows, vocab)) < share, chosen, values)
            logits = torch.from_numpy(values).to(numerics.DTYPES[example % 3])
            cuts = sorted(random.integers(0, vocab + 1, int(random.integers(0, 4))))
            edges = [0, *map(int, cuts), vocab]
            with self.subTest(example=example), mock.patch.multiple(launch, **small):
                self.check(logits, list(zip(edges, edges[1:])), row_gap=example % 3)

    def test_work_is_split_as_on_a_gpu(self):
        # Red if the combination of the chunks drops one, or takes a later one in a tie.
        with mock.patch.multiple(launch, PROGRAM_ROWS=1, TARGET_PROGRAMS=528):
            for rows, width in ((1, 9000), (5, 5000)):
                logits = selection.random_logits(rows, width, torch.bfloat16)
                logits[0, [4000, 1000]] = 50.0
                with self.subTest(rows=rows, width=width):
                    ids = self.check(logits, tp=1).token_ids.tolist()
                    self.assertEqual(ids[0], 1000)

    def test_padding_rows_are_zero_words(self):
        # Red if the words of padding rows are left as the allocator gave them.
        self.assertTrue(torch.utils.deterministic.fill_uninitialized_memory)
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        for rows in (1, 5, 67):
            for width in (40, 9000):
                logits = selection.random_logits(rows, width).to(self.device)
                words = shard_winner(
                    logits, valid_width=width, vocab_start=0, impl=self.impl
                )
                with self.subTest(rows=rows, width=width):
                    self.assertEqual(words.shape[1], padded_rows(rows))
                    padding = words[:, rows:].contiguous().view(torch.int32)
                    self.assertFalse(padding.any())
                    self.assertTrue(words[:2, :rows].isfinite().all())

    def test_row_offsets_past_31_bits(self):
        # Red if a row's offset is computed in 32 bits: row 2 would be read 2^32
        # elements before its place, where this buffer holds other values.
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
        words = shard_winner(logits, valid_width=64, vocab_start=0, impl=self.impl)
        value, column = logits.float().cpu().max(dim=1)
        self.assertEqual(words[0, :rows].tolist(), value.tolist())
        ids = words.view(torch.int32)[2, :rows]
        self.assertEqual(ids.tolist(), column.tolist())

    def test_words_of_an_empty_shard(self):
        # Red if a lane without a column has an id: an empty shard could win a tie.
        shard = torch.zeros(3, 8, device=self.device)
        words = shard_winner(shard, valid_width=0, vocab_start=5, impl=self.impl)
        self.assertEqual(words[:2, :3].unique().tolist(), [-INF])
        ids = words.view(torch.int32)[2, :3]
        self.assertEqual(ids.unique().tolist(), [2**31 - 1])

    def test_merge_of_many_rows_and_ranks(self):
        # Red if a program of the merge takes another's rows, ranks are merged out of
        # range, or a stride of the buffers it updates is ignored.
        rows, vocab, tp = 70, 1003, 12
        logits = selection.random_logits(rows, vocab)
        parts = []
        for start, end in selection.even_bounds(vocab, tp):
            shard = logits[:, start:end].to(self.device)
            parts.append(
                shard_winner(
                    shard, valid_width=end - start, vocab_start=start, impl=self.impl
                )
            )
        draft_tokens = torch.full((rows, 9), -1, device=self.device)
        positions = torch.arange(3 * rows, device=self.device)
        ids, best, _ = merge_shard_winners(
            torch.cat(parts),
            rows=rows,
            vocab_size=vocab,
            draft_tokens=draft_tokens[:, 1::3],
            column=2,
            positions=positions[::3],
            impl=self.impl,
        )
        value, column = logits.max(dim=1)
        self.assertEqual(ids.tolist(), column.tolist())
        self.assertEqual(best.tolist(), value.tolist())
        expected = torch.full((rows, 9), -1)
        expected[:, 7] = column
        self.assertTrue(torch.equal(draft_tokens.cpu(), expected))
        expected = torch.arange(3 * rows)
        expected[::3] += 1
        self.assertTrue(torch.equal(positions.cpu(), expected))


class SoftcapWithinALastBit:
    """The CPU's tanh, a GPU's and the interpreter's substitute round differently."""

    def check(self, logits, *args, softcap=None, **options):
        actual = self.select(logits, *args, softcap=softcap, **options)
        expected = reference_selection(logits, softcap)
        if softcap is not None:
            best, exact = actual.logits, expected.logits.float()
            close = torch.isclose(best, exact, rtol=SOFTCAP_TOLERANCE, atol=0.0)
            actual = actual._replace(logits=torch.where(close, exact, best))
        assert_matches_reference(actual, expected)
        return actual


class InterpretedOverrides:
    def test_extremes_of_the_dtypes(self):
        # The interpreter's upcast of BF16 loses subnormals: BF16 is left to the GPU.
        dtypes = (torch.float16, torch.float32)
        with mock.patch.object(numerics, "DTYPES", dtypes):
            super().test_extremes_of_the_dtypes()


def interpreted_cases() -> type:
    """The suite of the torch path and the kernels' own cases, on CPU tensors."""
    cases = (
        InterpretedOverrides,
        SoftcapWithinALastBit,
        KernelCases,
        selection.SelectionCases,
        selection.ShardCases,
        selection.MergeCases,
        numerics.SpecialValueCases,
        numerics.LogSumExpCases,
        numerics.SoftcapCases,
        ShardWinnerCase,
    )
    return type("InterpretedCases", cases, {"impl": "triton"})


def run_interpreted(results: Path) -> None:
    """Run every case in this process; one line of JSON each, as it ends."""
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    # A program costs the interpreter more than its elements do: few, with many rows.
    launch.PROGRAM_ROWS, launch.TARGET_PROGRAMS = 64, 4
    cases = interpreted_cases()
    with results.open("w", buffering=1) as file:
        for name in unittest.defaultTestLoader.getTestCaseNames(cases):
            if ONLY_CASES not in name:
                continue
            result = cases(name).run(unittest.TestResult())
            problems = [trace for _, trace in result.failures + result.errors]
            skipped = [reason for _, reason in result.skipped]
            file.write(json.dumps([name, problems, skipped]) + "\n")


@unittest.skipUnless(HAS_TRITON, "Triton is not installed")
class TestKernelsInInterpreter(CustomTestCase):
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
    setattr(TestKernelsInInterpreter, _name, report_case(_name))


@unittest.skipUnless(HAS_TRITON, "Triton is not installed")
class TestSplit(CustomTestCase):
    def test_chunks_cover_a_row_and_are_never_empty(self):
        # Red if a chunk is lost or empty, or more chunks than lanes combine them.
        for rows in (1, 2, 3, 7, 64, 256, 528, 5000):
            for width in (0, 1, 1024, 1025, 18992, 31040, 62080, 128256, 10**6):
                for block in (512, 1024):
                    chunks, blocks = launch.split_columns(rows, width, block)
                    with self.subTest(rows=rows, width=width, block=block):
                        self.assertGreaterEqual(chunks * blocks * block, width)
                        self.assertLess((chunks - 1) * blocks * block, max(width, 1))
                        self.assertLessEqual(chunks, launch.MAX_SPLITS)

    def test_few_rows_are_split_and_many_are_not(self):
        # Red if one row runs on a few SMs, or a launch is added where none is needed.
        self.assertGreater(launch.split_columns(1, 62080, 1024).chunks, 60)
        self.assertEqual(launch.split_columns(528, 62080, 1024).chunks, 1)


if __name__ == "__main__":
    if len(sys.argv) == 2 and os.environ.get("TRITON_INTERPRET") == "1":
        run_interpreted(Path(sys.argv[1]))
    else:
        unittest.main()
