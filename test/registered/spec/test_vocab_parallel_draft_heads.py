"""Draft heads of every kind in a real TP group of gloo ranks: packed equals dense."""

import unittest

import numpy as np
import torch

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import draft_head_rank_kit as kit
from sglang.test.kits.draft_head_rank_kit import HeadCase
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.kits.shard_winner_kit import (
    Selection,
    assert_matches_reference,
    reference_selection,
)
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=40, suite="base-a-test-cpu")

# One draft worker a name: its heads, and the reason that it has to give.
WORKERS = {
    "own": ([HeadCase()], None),
    "tied": ([HeadCase("tied")], None),
    "shared by object": ([HeadCase("shared"), HeadCase("shared")], None),
    "quantised": ([HeadCase("quantised")], None),
    "bf16": ([HeadCase(dtype=torch.bfloat16)], None),
    "fp32 head over bf16": ([HeadCase(dtype=torch.bfloat16, fp32=True)], None),
    "positive scale": ([HeadCase(scale=kit.SCALE)], None),
    "softcap": ([HeadCase(softcap=kit.SOFTCAP)], None),
    "reduced vocabulary": ([HeadCase(vocab_size=kit.DRAFT_VOCAB)], None),
    "a head a layer": ([HeadCase(), HeadCase("quantised"), HeadCase("tied")], None),
    "added vocabulary": ([HeadCase(added_tokens=5)], "added_vocab"),
    "one layer of three": (
        [HeadCase(), HeadCase(), HeadCase(scale=-1.0)],
        "nonpositive_scale",
    ),
}
WORLD_SIZES = (2, 3)


class TestDraftHeads(CustomTestCase):
    @classmethod
    def setUpClass(cls):
        cases = [heads for heads, _ in WORKERS.values()]
        cls.results = {
            size: [
                dict(zip(WORKERS, rank, strict=True))
                for rank in run_ranks(kit.heads_on_rank, size, cases)
            ]
            for size in WORLD_SIZES
        }

    def each(self, packed: bool):
        """World size, name and every rank's result of the workers of one path."""
        for size, ranks in self.results.items():
            for name, (_, reason) in WORKERS.items():
                if (reason is None) == packed:
                    with self.subTest(world_size=size, head=name):
                        yield name, [rank[name] for rank in ranks]

    def test_selections_are_those_of_the_gathered_logits(self):
        """Red when a head's raw weight is multiplied (quantised), padding wins, scale
        or softcap is left out, the head is cast otherwise, or a layer gets another
        layer's head."""
        for name, ranks in self.each(packed=True):
            heads = zip(ranks[0]["dense"], ranks[0]["packed"], strict=True)
            for dense, packed in heads:
                logits = torch.from_numpy(dense["next_token_logits"])
                self.assertEqual(packed["next_token_logits"].shape, (kit.ROWS, 1))
                selection = Selection(
                    torch.from_numpy(packed["logits_token_ids"]),
                    torch.from_numpy(packed["next_token_logits"]).squeeze(-1),
                    torch.from_numpy(packed["logits_logsumexp"]),
                )
                assert_matches_reference(selection, reference_selection(logits))

    def test_input_logprobs_add_no_rows(self):
        """Red when a prefill whose requests ask for input logprobs hands on a row for
        each of their tokens, where the draft worker counts on one a request."""
        last_tokens = np.cumsum(kit.PROMPTS) - 1
        for _, ranks in self.each(packed=True):
            rank = ranks[0]
            for prefill, rows in zip(rank["packed_prefill"], rank["packed"]):
                self.assertEqual(set(prefill), set(rows))
                for field, value in prefill.items():
                    self.assertTrue(np.array_equal(value, rows[field][last_tokens]))

    def test_ranks_hold_the_same_bits(self):
        """Red when a rank merges other bytes than its neighbours."""
        for _, ranks in self.each(packed=True):
            for rank in ranks[1:]:
                for mine, first in zip(rank["packed"], ranks[0]["packed"]):
                    for field, value in mine.items():
                        self.assertTrue(np.array_equal(value, first[field]), field)

    def test_a_worker_says_what_it_drafts_over(self):
        """Red when the draft's own vocabulary is not the one that bounds its ids."""
        for name, ranks in self.each(packed=True):
            vocab = WORKERS[name][0][0].vocab_size
            for rank in ranks:
                self.assertEqual(
                    rank["status"],
                    {
                        "mode": "on",
                        "path": "packed",
                        "transport": "gloo",
                        "vocab_size": vocab,
                    },
                )

    def test_dense_heads(self):
        """Red when one unsuitable head leaves the others packed, or changes an
        output."""
        for name, ranks in self.each(packed=False):
            expected = {"mode": "on", "path": "dense", "reason": WORKERS[name][1]}
            for rank in ranks:
                self.assertEqual(rank["status"], expected)
                for dense, after in zip(rank["dense"], rank["packed"], strict=True):
                    self.assertEqual(set(after), {"next_token_logits"})
                    for field, value in after.items():
                        self.assertTrue(np.array_equal(value, dense[field]))

    def test_dense_has_the_bits_of_the_packed_log_sum_exp(self):
        """Red when dense sums the vocabulary in another order than the ranks do: other
        shards, or a merge in another order."""
        for _, ranks in self.each(packed=True):
            for rank in ranks:
                for dense, packed in zip(rank["confident"], rank["packed"]):
                    self.assertNotIn("logits_token_ids", dense)
                    mine, theirs = dense["logits_logsumexp"], packed["logits_logsumexp"]
                    self.assertEqual(mine.tobytes(), theirs.tobytes())

    def test_dense_prefills_with_input_logprobs_have_it(self):
        """Red when a draft's prefill loses the log-sum-exp because a request wants the
        logprobs of its input: its first token's probability would be missing."""
        for _, ranks in self.each(packed=True):
            for prefill in ranks[0]["confident_prefill"]:
                logits = torch.from_numpy(prefill["next_token_logits"]).double()
                self.assertEqual(len(logits), len(kit.PROMPTS))
                torch.testing.assert_close(
                    torch.from_numpy(prefill["logits_logsumexp"]).double(),
                    logits.logsumexp(-1),
                    rtol=2e-5,
                    atol=2e-5,
                )

    def test_every_rank_and_path_decides_the_same(self):
        """Red when a rank's or a path's confidence differs in a bit: ranks that choose
        other steps hang."""
        chosen = set()
        for _, ranks in self.each(packed=True):
            expected = [kit.decisions(fields) for fields in ranks[0]["packed"]]
            for rank in ranks:
                for path in ("packed", "confident"):
                    decided = [kit.decisions(fields) for fields in rank[path]]
                    self.assertEqual(decided, expected)
            chosen |= {steps for head in expected for _, steps in head}
        self.assertGreater(len(chosen), 1)


if __name__ == "__main__":
    unittest.main()
