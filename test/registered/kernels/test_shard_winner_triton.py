"""The cases of the packed draft words on their Triton kernels, in the interpreter.

On CUDA tensors the kernels are the default, so the CUDA classes of the files beside
this one run them there.
"""

import unittest
from unittest import mock

import torch

from sglang.kernels.ops.speculative import shard_winner_triton as launch
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import shard_winner_kernel_cases as kernels
from sglang.test.kits import shard_winner_numeric_cases as numerics
from sglang.test.kits import shard_winner_selection_cases as selection
from sglang.test.kits import triton_interpreter_kit as interpreter
from sglang.test.kits.shard_winner_kit import ShardWinnerCase
from sglang.test.kits.shard_winner_merge_cases import MergeCases
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=90, suite="base-a-test-cpu")


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
        kernels.SoftcapWithinALastBit,
        kernels.KernelCases,
        selection.SelectionCases,
        selection.ShardCases,
        MergeCases,
        numerics.SpecialValueCases,
        numerics.LogSumExpCases,
        numerics.SoftcapCases,
        ShardWinnerCase,
    )
    return type("InterpretedCases", cases, {"impl": "triton"})


def prepare() -> None:
    # A program costs the interpreter more than its elements do: few, with many rows.
    launch.PROGRAM_ROWS, launch.TARGET_PROGRAMS = 64, 4


class TestKernelsInInterpreter(interpreter.InterpretedCase):
    file = __file__
    locals().update(interpreter.reports_of(interpreted_cases()))


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
    if interpreter.is_second_process():
        prepare()
        interpreter.run_cases(interpreted_cases())
    else:
        unittest.main()
