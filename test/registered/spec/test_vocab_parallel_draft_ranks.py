"""The packed draft words over real gloo process groups of 2, 3, 4 and 8 ranks."""

import unittest

import numpy as np
import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import shard_winner_rank_kit as rank_kit
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.kits.shard_winner_kit import (
    assert_matches_reference,
    even_bounds,
    reference_selection,
)
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=45, suite="base-a-test-cpu")

VOCAB = 1003
WORLD_SIZES = (2, 3, 4, 8)


def uneven_bounds(world_size):
    """Every other rank has one column or none; the last one has the rest."""
    widths = [rank % 3 for rank in range(world_size - 1)]
    ends = np.cumsum([0] + widths).tolist() + [VOCAB]
    return list(zip(ends[:-1], ends[1:]))


class TestVocabParallelDraftRanks(CustomTestCase):
    def assert_same_bits(self, results):
        for rank, result in enumerate(results[1:], start=1):
            for name, bits in result.items():
                self.assertTrue(
                    np.array_equal(bits, results[0][name]),
                    f"{name} of rank {rank} differs from rank 0",
                )

    def check(self, results, logits):
        self.assert_same_bits(results)
        assert_matches_reference(
            rank_kit.from_bits(results[0]), reference_selection(logits)
        )

    def test_1000_random_rows_are_bit_equal_on_all_ranks(self):
        # Red if the merge depends on the rank, e.g. starts with the rank's own words.
        for world_size in WORLD_SIZES:
            for bounds in (even_bounds(VOCAB, world_size), uneven_bounds(world_size)):
                for dtype in ("bfloat16", "float32"):
                    with self.subTest(world_size=world_size, bounds=bounds):
                        results = run_ranks(
                            rank_kit.random_rows, world_size, 1000, dtype, bounds
                        )
                        logits = rank_kit.random_logits(1000, VOCAB, dtype)
                        self.check(results, logits)

    def test_fewer_tokens_than_ranks(self):
        # Red if an empty rank skips the collective (a hang) or wins.
        bounds = even_bounds(5, 8)
        results = run_ranks(rank_kit.random_rows, 8, 7, "float32", bounds)
        self.check(results, rank_kit.random_logits(7, 5, "float32"))

    def test_special_rows_with_and_without_rewritten_zeros(self):
        # Red if -0.0 for +0.0, or a sign bit on id 0, changes any result on any rank.
        logits = np.full((6, VOCAB), -1.0, dtype=np.float32)
        logits[0, 0] = 5.0
        logits[1, 0] = 0.0
        logits[2, [0, 900]] = -0.0, 0.0
        logits[3, 400], logits[3, 700] = np.nan, np.inf
        logits[4] = -np.inf
        logits[5] = -np.log(VOCAB)
        for world_size in (2, 3):
            bounds = even_bounds(VOCAB, world_size)
            plain, rewritten = (
                run_ranks(rank_kit.special_rows, world_size, logits, bounds, rewrite)
                for rewrite in (False, True)
            )
            self.check(plain, torch.from_numpy(logits))
            self.check(rewritten, torch.from_numpy(logits))
            self.assertEqual(rewritten[0]["token_ids"].tolist(), [0, 0, 0, 700, 0, 0])
            for name in ("token_ids", "logits"):
                self.assertTrue(np.array_equal(plain[0][name], rewritten[0][name]))

    def test_batches_of_other_sizes_in_turn(self):
        # Red if rows of a larger batch are left over, or padding rows are merged.
        counts = [8, 3, 1, 0, 1, 2, 3, 4, 5, 256, 257, 1]
        bounds = even_bounds(VOCAB, 4)
        per_rank = run_ranks(rank_kit.row_counts, 4, counts, bounds)
        for turn, rows in enumerate(counts):
            with self.subTest(turn=turn, rows=rows):
                results = [turns[turn] for turns in per_rank]
                self.assertEqual(results[0]["token_ids"].shape, (rows,))
                self.check(
                    results, rank_kit.random_logits(rows, VOCAB, "float32", seed=turn)
                )

    def test_1000_rounds_with_a_delayed_rank(self):
        # Red if a round uses another round's words: buffers reused before all read.
        bounds = even_bounds(VOCAB, 4)
        results = run_ranks(rank_kit.delayed_rounds, 4, 1000, 0.005, bounds)
        self.assertEqual(results, [(1000, 0)] * 4)

    def test_a_failing_rank_is_an_error_and_not_a_hang(self):
        # Red if run_ranks hides a rank's exception: every test here would pass.
        with self.assertRaisesRegex(RuntimeError, "rank 0 failed"):
            run_ranks(rank_kit.random_rows, 2, 4, "no_such_dtype", even_bounds(8, 2))


if __name__ == "__main__":
    unittest.main()
