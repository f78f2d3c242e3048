"""The cases of draft trees on their Triton kernels, in Triton's interpreter.

On CUDA tensors the kernels are the default, so the CUDA class of ``test_shard_topk.py``
runs them there.
"""

import unittest
from unittest import mock

import numpy as np
import torch

from sglang.kernels.ops.speculative import shard_topk_triton as launch
from sglang.kernels.ops.speculative import shard_winner_triton as winner
from sglang.kernels.ops.speculative.shard_winner import shard_winner
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import shard_topk_cases as topk
from sglang.test.kits import shard_winner_numeric_cases as numerics
from sglang.test.kits import shard_winner_selection_cases as selection
from sglang.test.kits import triton_interpreter_kit as interpreter
from sglang.test.kits.shard_topk_kit import ShardTopkCase, reference_topk
from sglang.test.kits.shard_winner_kernel_cases import special_shards
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=90, suite="base-a-test-cpu")

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
            dtype = selection.DTYPES[example % 3]
            logits, bounds = special_shards(random, 6, (16, 1500), dtype)
            small = mock.patch.multiple(winner, WARPS=1, VECTOR_BYTES=8)
            with self.subTest(example=example), small:
                self.check_topk(
                    logits,
                    bounds,
                    k=topk.KS[example % len(topk.KS)],
                    row_gap=example % 3,
                )

    def test_softcap_before_the_order(self):
        # Red if the second look at a chunk leaves the softcap out: its saturated logits
        # tie, and the smallest ids come first. The interpreter's tanh is a substitute,
        # so that the values are compared within a last bit.
        logits = selection.random_logits(2, 3000)
        logits[:, [900, 300, 301, 2999]] = torch.tensor([5e3, 4e3, 4.5e3, 6e3])
        found = self.select(logits, k=4, softcap=30.0)
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
        logits = self.rows_past_31_bits()
        rows = logits.shape[0]
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


def prepare() -> None:
    winner.PROGRAM_ROWS = 64
    # The interpreter's upcast of BF16 loses subnormals: left to the GPU.
    numerics.DTYPES = (torch.float16, torch.float32)


class TestTopkKernelsInInterpreter(interpreter.InterpretedCase):
    file = __file__
    locals().update(interpreter.reports_of(interpreted_cases()))


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
    if interpreter.is_second_process():
        prepare()
        interpreter.run_cases(interpreted_cases())
    else:
        unittest.main()
