"""Draft heads under data-parallel attention, in real gloo groups: packed equals dense."""

import unittest

import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import dp_head_rank_kit as kit
from sglang.test.kits.dp_head_rank_kit import Layout
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.kits.shard_topk_kit import assert_matches_topk, reference_topk
from sglang.test.kits.shard_winner_kit import (
    Selection,
    assert_matches_reference,
    reference_selection,
)
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=60, suite="base-a-test-cpu")

TIMEOUT_S = 120
# Rows of two and of three replicas: equal, uneven, idle ones at either end, all idle
# but one, and one row alone.
TWO = [(3, 3), (5, 2), (0, 4), (4, 0), (1, 7), (1, 0)]
THREE = [(3, 3, 3), (5, 2, 9), (0, 4, 1), (4, 0, 3), (2, 1, 0), (0, 0, 1)]


class TestDataParallelHeads(CustomTestCase):
    def check(self, world_size, layout, batches):
        """Each rank's rows are those of its own dense logits; no rank hangs."""
        ranks = run_ranks(
            kit.head_on_rank, world_size, layout, batches, timeout_s=TIMEOUT_S
        )
        rows = 0
        for rank, result in enumerate(ranks):
            self.assertEqual(result["status"]["path"], "packed", result["status"])
            for counts, dense, packed in zip(
                batches, result["dense"], result["packed"], strict=True
            ):
                replica = rank // (world_size // layout.dp)
                with self.subTest(rank=rank, counts=counts):
                    logits = torch.from_numpy(dense)
                    self.assertEqual(logits.shape, (counts[replica], kit.VOCAB))
                    self.assert_selection(logits, packed, layout.k)
                    rows += len(logits)
        return rows

    def assert_selection(self, logits, packed, k):
        values = torch.from_numpy(packed["next_token_logits"])
        ids = torch.from_numpy(packed["logits_token_ids"])
        logsumexp = torch.from_numpy(packed["logits_logsumexp"])
        self.assertEqual(values.shape, (logits.shape[0], k))
        if logits.shape[0] == 0:
            self.assertEqual((ids.numel(), logsumexp.numel()), (0, 0))
        elif k > 1:
            selection = Selection(ids, values, logsumexp)
            assert_matches_topk(selection, reference_topk(logits, k))
        else:
            selection = Selection(ids, values.squeeze(-1), logsumexp)
            assert_matches_reference(selection, reference_selection(logits))

    def test_head_over_all_ranks(self):
        """Red when an idle rank skips the gather of rows or of words (a hang), when a
        rank keeps another rank's rows, or takes the path by its own row count."""
        self.assertGreater(self.check(2, Layout(dp=2), TWO), 0)
        self.assertGreater(self.check(3, Layout(dp=3), THREE), 0)

    def test_head_over_all_ranks_with_attention_groups(self):
        """Red when rows of a replica are counted once a rank instead of once."""
        self.assertGreater(self.check(4, Layout(dp=2), TWO), 0)

    def test_head_of_an_attention_group(self):
        """Red when the words of a DP LM head are gathered over all ranks, whose rows
        are others, or when a replica waits for an idle one."""
        self.assertGreater(self.check(4, Layout(dp=2, dp_lm_head=True), TWO), 0)

    def test_all_to_all(self):
        """Red when the packed path needs equal counts, as the exchange of logits does,
        or gives other rows than it."""
        layout = Layout(dp=2, all_to_all=True)
        self.assertGreater(self.check(2, layout, TWO), 0)

    def test_trees(self):
        """Red when candidates of a tree are cut out along another dimension."""
        self.assertGreater(self.check(3, Layout(dp=3, k=4), THREE), 0)
        layout = Layout(dp=2, dp_lm_head=True, k=4)
        self.assertGreater(self.check(4, layout, TWO), 0)

    def test_a_head_alone_in_its_group_stays_dense(self):
        """Red when a DP LM head without a group of its own is taken for sharded."""
        layout = Layout(dp=2, dp_lm_head=True)
        for result in run_ranks(kit.head_on_rank, 2, layout, TWO, timeout_s=TIMEOUT_S):
            self.assertEqual(result["status"]["reason"], "tp1")


if __name__ == "__main__":
    unittest.main()
