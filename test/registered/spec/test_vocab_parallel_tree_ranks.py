"""The words of draft trees over real gloo process groups of 2, 3 and 4 ranks."""

import unittest

import numpy as np
import torch

from sglang.srt.speculative.draft_confidence import selected_probability
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import shard_topk_rank_kit as topk_kit
from sglang.test.kits import shard_winner_rank_kit as rank_kit
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.kits.shard_topk_kit import assert_matches_topk, reference_topk
from sglang.test.kits.shard_winner_kit import even_bounds
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=60, suite="base-a-test-cpu")

VOCAB, ROWS = 1003, 300
WORLD_SIZES = (2, 3, 4)
KS = (2, 4, 8)
PROBABILITY_TOLERANCE = 2e-5


def uneven_bounds(world_size):
    """Shards of no, one, two ... columns; the last one has the rest."""
    ends = np.cumsum([0, *range(world_size - 1)]).tolist() + [VOCAB]
    return list(zip(ends[:-1], ends[1:]))


class TestTreeRanks(CustomTestCase):
    def check(self, results, logits, k):
        """Bit-equal on all ranks, and the reference's candidates; they are returned."""
        for rank, result in enumerate(results[1:], start=1):
            for name, bits in result.items():
                equal = np.array_equal(bits, results[0][name])
                self.assertTrue(equal, f"{name} of rank {rank} differs from rank 0")
        found = rank_kit.from_bits(results[0])
        assert_matches_topk(found, reference_topk(logits, k))
        return found

    def test_candidates_and_exact_probabilities(self):
        # Red if a candidate of a rank is lost, doubled or out of order on any rank, or
        # a probability is not over the whole vocabulary.
        for world_size in WORLD_SIZES:
            cases = [
                (k, dtype, bounds(world_size))
                for k in KS
                for dtype, bounds in (
                    ("bfloat16", lambda tp: even_bounds(VOCAB, tp)),
                    ("float32", uneven_bounds),
                )
            ]
            per_rank = run_ranks(topk_kit.random_topk, world_size, ROWS, cases)
            for (k, dtype, _), *results in zip(cases, *per_rank, strict=True):
                with self.subTest(world_size=world_size, k=k, dtype=dtype):
                    logits = rank_kit.random_logits(ROWS, VOCAB, dtype)
                    found = self.check(results, logits, k)
                    self.assert_dense_candidates(found, logits, k)

    def assert_dense_candidates(self, found, logits, k):
        """What softmax and top-k over gathered logits give, in FP64. Only candidates
        of equal probability may stand in another order there, and none here does: in
        FP64 equal probabilities are equal logits, which go by id."""
        exact = logits.double().softmax(dim=1)
        probability = selected_probability(
            found.logits, found.logsumexp.unsqueeze(1)
        ).double()
        dense = exact.topk(k, dim=1).values
        gap = (probability - dense).abs().max().item()
        self.assertLess(gap, PROBABILITY_TOLERANCE)
        chosen = exact.gather(1, found.token_ids)
        self.assertTrue(torch.equal(chosen, dense))

    def test_ties_and_underflowed_tails(self):
        # Red if candidates whose FP32 probabilities are all 0 go by id instead of by
        # logit, or equal logits on several ranks do not go by id.
        logits = np.full((4, VOCAB), -500.0, dtype=np.float32)
        logits[0, 600] = 300.0
        logits[0, [900, 800, 10]] = -100.0, -101.0, -102.0
        logits[1, [1002, 251, 700, 250, 3]] = 7.0
        logits[2] = 0.0
        logits[3, [5, 900]] = np.nan, np.inf
        expected = (
            [600, 900, 800, 10],
            [3, 250, 251, 700],
            [0, 1, 2, 3],
            [900, 0, 1, 2],
        )
        for world_size in WORLD_SIZES:
            bounds = even_bounds(VOCAB, world_size)
            results = run_ranks(topk_kit.given_topk, world_size, logits, bounds, 4)
            found = self.check(results, torch.from_numpy(logits), 4)
            self.assertEqual(found.token_ids.tolist(), [*map(list, expected)])
            tail = selected_probability(found.logits, found.logsumexp.unsqueeze(1))
            self.assertEqual(tail[0].tolist(), [1.0, 0.0, 0.0, 0.0])
            self.assertEqual(tail[3].tolist(), [0.0] * 4)

    def test_fewer_tokens_on_a_rank_than_candidates(self):
        # Red if the filler of a short or empty rank becomes a candidate, or such a
        # rank sends words of another size (a hang).
        case = (8, "float32", even_bounds(9, 4))
        per_rank = run_ranks(topk_kit.random_topk, 4, 7, [case])
        results = [result for (result,) in per_rank]
        self.check(results, rank_kit.random_logits(7, 9, "float32"), 8)


if __name__ == "__main__":
    unittest.main()
