"""Which transport the ranks agree on, and drafts over a double of the push plane."""

import tempfile
import unittest

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import push_plane_kit
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=20, suite="base-a-test-cpu")

# Words of 8 rows: 3 words x 4 bytes each.
SLOT_BYTES = 96


class TestVocabParallelDraftTransport(CustomTestCase):
    def rounds(self, setups, row_counts, delay_s=0.0, timeout_s=90):
        """Status, pushes and wrong rounds that all ranks report, the same of each."""
        world_size = len(setups)
        size = 2 * world_size * world_size * SLOT_BYTES
        with tempfile.NamedTemporaryFile() as plane:
            plane.truncate(size)
            results = run_ranks(
                push_plane_kit.draft_rounds,
                world_size,
                plane.name,
                setups,
                SLOT_BYTES,
                row_counts,
                delay_s,
                timeout_s=timeout_s,
            )
        for result in results[1:]:
            self.assertEqual(result, results[0])
        self.assertEqual(results[0]["wrong"], [])
        return results[0]

    def test_all_ranks_push(self):
        """Red when a zero word of id 0 or logit 0 is read with its sign bit."""
        result = self.rounds(["push"] * 3, [1, 4, 8])
        self.assertEqual(result["status"]["transport"], "nvlink_push")
        self.assertEqual(result["pushes"], 3)

    def test_a_plane_that_one_rank_lacks(self):
        """Red when the others push without it (a hang), or a rank dies alone."""
        for lack in ("none", "cannot be built", "no kernel", "half a slot"):
            with self.subTest(lack=lack):
                result = self.rounds(["push", lack, "push"], [1, 5, 8])
                self.assertEqual(result["status"]["path"], "packed")
                self.assertEqual(result["status"]["transport"], "gloo")
                self.assertEqual(result["pushes"], 0)

    def test_row_counts_at_and_above_the_slot(self):
        """Red when a rank pushes rows that do not fit, or falls back too early."""
        for rows, pushed in ((1, 1), (2, 1), (3, 1), (7, 1), (8, 1), (9, 0), (64, 0)):
            with self.subTest(rows=rows):
                result = self.rounds(["push"] * 2, [rows])
                self.assertEqual(result["pushes"], pushed)

    def test_batches_of_other_sizes_in_turn(self):
        """Red when words of an earlier batch stay in a slot, or 0 rows push."""
        counts = [8, 3, 1, 0, 9, 1, 8, 0, 2]
        result = self.rounds(["push"] * 3, counts)
        self.assertEqual(result["pushes"], len([n for n in counts if 0 < n <= 8]))

    def test_1000_rounds_with_a_delayed_rank(self):
        """Red when a round reads another round's words, or a later one its result."""
        result = self.rounds(["push"] * 3, [4] * 1000, delay_s=0.003)
        self.assertEqual(result["pushes"], 1000)


if __name__ == "__main__":
    unittest.main()
