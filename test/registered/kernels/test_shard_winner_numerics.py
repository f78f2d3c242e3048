"""NaN, infinities, log-sum-exp, softcap and working memory of the packed words."""

import unittest
from itertools import product

import torch

from sglang.kernels.ops.speculative import shard_winner_torch as module
from sglang.kernels.ops.speculative.shard_winner import shard_winner
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.kits.shard_winner_kit import (
    FewRowsCase,
    ShardWinnerCase,
    peak_cpu_bytes,
)
from sglang.test.kits.shard_winner_numeric_cases import (
    INF,
    NAN,
    LogSumExpCases,
    SoftcapCases,
    SpecialValueCases,
    random_logits,
)
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=20, suite="base-a-test-cpu")
register_cuda_ci(est_time=20, stage="base-b", runner_config="1-gpu-small")


class TestNumericsTorch(
    SpecialValueCases, LogSumExpCases, SoftcapCases, ShardWinnerCase
):
    impl = "torch"


class TestNumericsFewRows(SpecialValueCases, LogSumExpCases, SoftcapCases, FewRowsCase):
    """Red as the above, in ``shard_winner_few_rows.py``."""


# Softcap is left out: the reference's tanh is the CPU's, and bits have to be equal.
@unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")
class TestNumericsCuda(SpecialValueCases, LogSumExpCases, ShardWinnerCase):
    device = "cuda"


class TestWorkingMemory(ShardWinnerCase):
    def test_no_fp32_copy_of_the_shard(self):
        # Red if a chunk or tile is widened to the shard, or an index of its shape made.
        shard = random_logits(64, 62080, torch.bfloat16)
        call = dict(valid_width=62080, vocab_start=0)
        shard_winner(shard, **call)
        peak = peak_cpu_bytes(lambda: shard_winner(shard, **call))
        workspace = 4 * module.WORKSPACE_ELEMENTS
        self.assertLess(peak, shard.numel() * 4 / 3)
        self.assertLess(peak, 1.25 * workspace)
        copied = peak_cpu_bytes(lambda: shard.float().argmax(dim=1))
        self.assertGreaterEqual(copied, shard.numel() * 4)

    def test_memory_does_not_grow_with_rows(self):
        # Red if rows are not tiled: a prefill's rows would need their own workspace.
        # Beside the workspace, a tile needs the indices of one block a row.
        workspace = 4 * module.WORKSPACE_ELEMENTS
        shard = random_logits(8192, 1024, torch.bfloat16)
        call = dict(valid_width=1024, vocab_start=0)
        peak = peak_cpu_bytes(lambda: shard_winner(shard, **call))
        self.assertLess(peak, 2 * workspace)
        self.assertLess(2 * workspace, shard.numel() * 4)

    def test_memory_does_not_grow_with_columns(self):
        # Red if a wide row is among the few that are upcast as a whole.
        workspace = 4 * module.WORKSPACE_ELEMENTS
        width = 4 * module.WORKSPACE_ELEMENTS
        shard = random_logits(1, width, torch.bfloat16)
        call = dict(valid_width=width, vocab_start=0)
        peak = peak_cpu_bytes(lambda: shard_winner(shard, **call))
        self.assertLess(peak, 2 * workspace)
        self.assertLess(2 * workspace, shard.numel() * 4)

    def test_threads_do_not_change_the_words(self):
        # Red if ids, logits or the log-sum-exp depend on how torch splits the work: ranks
        # that reduce the same logits with other numbers of threads would disagree.
        before = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, before)
        for rows, width, k in product((1, 3, 7, 64), (33000, 62083, 248320), (1, 2)):
            # FP32 steps are finest at a log-sum-exp near 0.
            shard = random_logits(rows, width)
            shard -= shard.logsumexp(dim=1, keepdim=True)
            words = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                call = dict(valid_width=width, vocab_start=0, k=k)
                words.append(shard_winner(shard, **call).view(torch.int32))
            with self.subTest(rows=rows, width=width, k=k):
                self.assertTrue(torch.equal(*words))


class TestNeighbours(CustomTestCase):
    def test_an_odd_row_does_not_change_its_neighbours(self):
        # Red if a row that is reduced again takes others of its call with it: what a
        # request gets would depend on whom it is served with.
        for rows, odd in product((4, 5), (NAN, INF, 3e38)):
            shard = random_logits(rows)
            shard -= shard.logsumexp(dim=1, keepdim=True)
            call = dict(valid_width=shard.shape[1], vocab_start=0)
            without = shard_winner(shard, **call).view(torch.int32)
            shard[1, 100] = odd
            words = shard_winner(shard, **call).view(torch.int32)
            others = [row for row in range(rows) if row != 1]
            with self.subTest(rows=rows, odd=odd):
                self.assertTrue(torch.equal(words[:, others], without[:, others]))


if __name__ == "__main__":
    unittest.main()
