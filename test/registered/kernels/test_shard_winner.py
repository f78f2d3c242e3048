"""Selection, padding and shards of the packed draft words."""

import unittest
from unittest import mock

import torch

from sglang.kernels.ops.speculative import shard_winner_few_rows
from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.kits.shard_winner_kit import FewRowsCase, ShardWinnerCase
from sglang.test.kits.shard_winner_merge_cases import MergeCases
from sglang.test.kits.shard_winner_selection_cases import (
    SelectionCases,
    ShardCases,
    random_logits,
)
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=20, suite="base-a-test-cpu")
register_cuda_ci(est_time=20, stage="base-b", runner_config="1-gpu-small")


class TestShardWinnerTorch(SelectionCases, ShardCases, MergeCases, ShardWinnerCase):
    impl = "torch"


class TestFewRows(SelectionCases, ShardCases, MergeCases, FewRowsCase):
    """Red as the above, in ``shard_winner_few_rows.py``."""


class TestCompiledFewRows(CustomTestCase):
    def test_a_compiled_forward_keeps_to_torch(self):
        """Red when a traced forward is asked for the numbers of its tensors, or another
        one no longer goes by them."""

        def select(logits: torch.Tensor) -> torch.Tensor:
            words = shard_winner(logits, valid_width=300, vocab_start=0)
            return merge_shard_winners(words, rows=1, vocab_size=300)[0]

        logits, taken = random_logits(1, 300), RuntimeError("few rows")
        expected = logits.argmax(dim=1).tolist()
        self.assertEqual(select(logits).tolist(), expected)
        for name in ("reduce_rows", "merge_words"):
            with mock.patch.object(shard_winner_few_rows, name, side_effect=taken):
                compiled = torch.compile(select, backend="eager")
                self.assertEqual(compiled(logits).tolist(), expected)
                with self.assertRaisesRegex(RuntimeError, "few rows"):
                    select(logits)


@unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")
class TestShardWinnerCuda(SelectionCases, ShardCases, MergeCases, ShardWinnerCase):
    device = "cuda"


if __name__ == "__main__":
    unittest.main()
