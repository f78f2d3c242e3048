"""The packed draft words over SGLang's own groups: gloo; NCCL and NVLink push on GPUs."""

import unittest

import numpy as np
import torch

from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.kits import transport_rank_kit as rank_kit
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.kits.shard_winner_kit import (
    assert_matches_reference,
    even_bounds,
    reference_selection,
)
from sglang.test.kits.shard_winner_rank_kit import from_bits
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=30, suite="base-a-test-cpu")
register_cuda_ci(est_time=120, stage="base-b", runner_config="2-gpu-large")

VOCAB, RANKS = 67, 2
TRANSPORT_ROWS = (8, 3, 1, 0, 2, 4, 5, 64, 257, rank_kit.PAST_SLOT, 1)


class TransportCases:
    """Two ranks over every transport of the device."""

    def plan(self, rows, **options):
        bounds = even_bounds(VOCAB, RANKS)
        return rank_kit.Plan(self.device, list(rows), bounds, **options)

    def check(self, plan, per_rank):
        """Every batch: the reference's selection, the same bits on every rank."""
        for transport, turns in per_rank[0].items():
            for turn, mine in enumerate(turns):
                with self.subTest(transport=transport, turn=turn):
                    theirs = per_rank[1][transport][turn]
                    for name, bits in mine.items():
                        self.assertTrue(np.array_equal(bits, theirs[name]), name)
                    rows = mine["token_ids"].shape[0]
                    logits = rank_kit.logits_of(plan, turn, rows)
                    assert_matches_reference(
                        from_bits(mine), reference_selection(logits)
                    )

    def test_row_counts_in_turn(self):
        # Red if a transport leaves rows of a larger batch behind, needs another
        # alignment, flips the id of token 0, or does not take words past its slot.
        plan = self.plan(TRANSPORT_ROWS)
        per_rank = run_ranks(rank_kit.batches, RANKS, plan, timeout_s=300)
        self.check(plan, per_rank)
        for transport, turns in per_rank[0].items():
            past_slot = turns[TRANSPORT_ROWS.index(rank_kit.PAST_SLOT)]
            self.assertFalse(past_slot["pushes"])
            self.assertEqual(turns[0]["pushes"], transport == "nvlink_push")

    def test_many_rounds_with_a_late_rank(self):
        # Red if a round reads another round's words: a buffer reused too early.
        plan = self.plan([1, 3, 8] * 50, late_s=0.005)
        self.check(plan, run_ranks(rank_kit.batches, RANKS, plan, timeout_s=300))


class TestTransportGloo(TransportCases, CustomTestCase):
    device = "cpu"


@unittest.skipUnless(torch.cuda.device_count() >= RANKS, "needs 2 CUDA devices")
class TestTransportCuda(TransportCases, CustomTestCase):
    device = "cuda"

    def test_captured_steps_follow_their_inputs(self):
        # Red if a captured exchange sends what its first run sent.
        plan = self.plan([8, 3, 1, 64])
        self.check(plan, run_ranks(rank_kit.replayed, RANKS, plan, timeout_s=300))


if __name__ == "__main__":
    unittest.main()
