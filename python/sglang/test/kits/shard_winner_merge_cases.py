"""Cases of the merge of packed draft words.

Mix-ins for a ``ShardWinnerCase``, whose ``impl`` and ``device`` they run on.
"""

import math

import numpy as np
import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.test.kits.shard_winner_kit import (
    MERGE_CASES,
    MERGE_VOCAB,
    assert_logsumexp,
    even_bounds,
    reference_merge,
    words_of,
)
from sglang.test.kits.shard_winner_selection_cases import random_logits


class MergeCases:
    def words(self, logits, tp=4):
        parts = [
            shard_winner(
                logits[:, start:end].to(self.device),
                valid_width=end - start,
                vocab_start=start,
                impl=self.impl,
            )
            for start, end in even_bounds(logits.shape[1], tp)
        ]
        return torch.cat(parts)

    def assert_merge(self, words, expected, vocab):
        """Merge the words and compare, ids and logits exactly."""
        rows = expected.token_ids.shape[0]
        actual = merge_shard_winners(
            words.to(self.device), rows=rows, vocab_size=vocab, impl=self.impl
        )
        ids, logits, logsumexp = (field.cpu() for field in actual)
        self.assertEqual(ids.tolist(), expected.token_ids.tolist())
        self.assertEqual(logits.tolist(), expected.logits.tolist())
        assert_logsumexp(logsumexp, expected)

    def test_merge_of_each_kind_of_word(self):
        # Red if a NaN value beats a number or takes the logit, a tie goes to the later
        # rank, or a rank's log-sum-exp is added at another rank's scale.
        for case in MERGE_CASES:
            with self.subTest(case=case.name):
                expected = reference_merge(words_of(case, 1), MERGE_VOCAB)
                self.assertEqual(expected.token_ids.tolist(), [case.token_id])
                self.assertEqual(expected.logits.tolist(), [case.logit])
                lse = expected.logsumexp.item()
                both_nan = math.isnan(lse) and math.isnan(case.logsumexp)
                close = both_nan or math.isclose(lse, case.logsumexp, rel_tol=1e-6)
                self.assertTrue(close, f"{lse} is not {case.logsumexp}")
                self.assert_merge(words_of(case, 4), expected, MERGE_VOCAB)

    def test_merge_of_any_words(self):
        # Red if a combination of special words is merged otherwise than the reference.
        specials = (0.0, -0.0, 1.0, 30.0, -30.0, 1e4, -1e4)
        specials += (math.inf, -math.inf, math.nan)
        random, rows, tp = np.random.default_rng(0), 400, 4
        words = torch.from_numpy(random.choice(specials, (tp, 3, rows))).float()
        ids = random.choice([0, 3, 7, 900, 2**31 - 1, -1, -(2**31)], (tp, rows))
        words.view(torch.int32)[:, 2] = torch.from_numpy(ids)
        words = words.flatten(0, 1)
        self.assert_merge(words, reference_merge(words, 901), 901)

    def test_padding_rows_do_not_reach_real_rows(self):
        # Red if the merge reads or returns rows past the real ones.
        logits = random_logits(5, 1003)
        clean = self.words(logits)
        for garbage in (float("nan"), float("inf"), 1e30):
            words = clean.clone()
            words[:, 5:] = garbage
            words.view(torch.int32)[2::3, 5:] = -7
            result = merge_shard_winners(words, rows=5, vocab_size=1003, impl=self.impl)
            expected = merge_shard_winners(
                clean, rows=5, vocab_size=1003, impl=self.impl
            )
            for got, want in zip(result, expected):
                self.assertEqual(got.shape[0], 5)
                self.assertTrue(torch.equal(got, want))

    def test_ids_are_clamped_to_the_vocabulary(self):
        # Red if a corrupt word can become an id outside [0, V).
        words = self.words(random_logits(4, 64))
        words.view(torch.int32)[2::3] = 1_000_000
        ids, _, _ = merge_shard_winners(words, rows=4, vocab_size=64, impl=self.impl)
        self.assertEqual(ids.tolist(), [63] * 4)

    def test_draft_tokens_and_positions_are_updated_in_place(self):
        # Red if another column or row of the token buffer, or a position, changes.
        logits = random_logits(3, 1003)
        draft_tokens = torch.full((5, 4), -1, device=self.device)
        positions = torch.arange(5, device=self.device)
        ids, _, _ = merge_shard_winners(
            self.words(logits),
            rows=3,
            vocab_size=1003,
            draft_tokens=draft_tokens,
            column=2,
            positions=positions,
            impl=self.impl,
        )
        expected = torch.full((5, 4), -1)
        expected[:3, 2] = ids.cpu()
        self.assertTrue(torch.equal(draft_tokens.cpu(), expected))
        self.assertEqual(positions.tolist(), [1, 2, 3, 3, 4])

    def test_buffers_that_do_not_hold_the_rows_are_refused(self):
        # Red if a kernel could write past the caller's buffers.
        words = self.words(random_logits(3, 1003))
        tokens = torch.zeros((3, 4), dtype=torch.int64, device=self.device)
        positions = torch.zeros(3, dtype=torch.int64, device=self.device)
        for changed in (
            dict(draft_tokens=tokens, column=4),
            dict(draft_tokens=tokens[:2]),
            dict(positions=positions[:2]),
            dict(positions=positions.repeat(3, 1)),
            dict(positions=positions.float()),
            dict(draft_tokens=tokens[:, 0]),
            dict(draft_tokens=tokens.float()),
        ):
            with self.assertRaisesRegex(ValueError, "draft_tokens|positions"):
                merge_shard_winners(words, rows=3, impl=self.impl, **changed)

    def test_results_do_not_alias_the_words(self):
        # Red if a result is a view of the buffer that the next step overwrites.
        words = self.words(random_logits(4, 1003), tp=1)
        result = merge_shard_winners(words, rows=4, vocab_size=1003, impl=self.impl)
        before = [field.clone() for field in result]
        words.fill_(float("nan"))
        for field, copy in zip(result, before):
            self.assertTrue(torch.equal(field, copy))

    def test_no_rows(self):
        # Red if an empty batch reaches a reduction over no rows.
        words = self.words(random_logits(0, 1003))
        self.assertEqual(tuple(words.shape), (12, 0))
        ids, logits, logsumexp = merge_shard_winners(words, rows=0, vocab_size=1003)
        self.assertEqual((ids.numel(), logits.numel(), logsumexp.numel()), (0, 0, 0))
