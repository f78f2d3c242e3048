"""The packed words of draft trees: the ``k`` best of every row, and their merge.

Runs the case tables of ``k`` = 1 with ``k`` = 4, and what only ``k`` > 1 has.
"""

import unittest

import torch

from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.kits import shard_winner_numeric_cases as numerics
from sglang.test.kits import shard_winner_selection_cases as selection
from sglang.test.kits.shard_topk_cases import TopkCases
from sglang.test.kits.shard_topk_kit import ShardTopkCase

register_cpu_ci(est_time=20, suite="base-a-test-cpu")
register_cuda_ci(est_time=60, stage="base-b", runner_config="1-gpu-small")

TABLES = (
    selection.SelectionCases,
    selection.ShardCases,
    numerics.SpecialValueCases,
    numerics.LogSumExpCases,
)


class TestShardTopkTorch(TopkCases, numerics.SoftcapCases, *TABLES, ShardTopkCase):
    impl = "torch"


# Softcap is left out: the reference's tanh is the CPU's, and bits have to be equal.
@unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")
class TestShardTopkCuda(TopkCases, *TABLES, ShardTopkCase):
    device = "cuda"


if __name__ == "__main__":
    unittest.main()
