"""Selection, padding and shards of the packed draft words."""

import unittest

import torch

from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.kits.shard_winner_kit import FewRowsCase, ShardWinnerCase
from sglang.test.kits.shard_winner_merge_cases import MergeCases
from sglang.test.kits.shard_winner_selection_cases import SelectionCases, ShardCases

register_cpu_ci(est_time=20, suite="base-a-test-cpu")
register_cuda_ci(est_time=20, stage="base-b", runner_config="1-gpu-small")


class TestShardWinnerTorch(SelectionCases, ShardCases, MergeCases, ShardWinnerCase):
    impl = "torch"


class TestFewRows(SelectionCases, ShardCases, MergeCases, FewRowsCase):
    """Red as the above, in ``shard_winner_few_rows.py``."""


@unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")
class TestShardWinnerCuda(SelectionCases, ShardCases, MergeCases, ShardWinnerCase):
    device = "cuda"


if __name__ == "__main__":
    unittest.main()
