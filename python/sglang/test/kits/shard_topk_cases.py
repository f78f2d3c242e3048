"""Cases of the packed words of draft trees that only ``k`` > 1 has.

Mix-ins for a ``ShardTopkCase``, whose ``impl`` and ``device`` they run on.
"""

import math

import numpy as np
import torch

from sglang.kernels.ops.speculative.shard_winner import (
    MAX_K,
    merge_shard_winners,
    shard_winner,
)
from sglang.test.kits import shard_winner_selection_cases as selection
from sglang.test.kits.shard_winner_kit import even_bounds, rewrite_zero_words

KS = (2, 3, 4, 8, MAX_K)
INF, NAN = math.inf, math.nan
NO_TOKEN = 2**31 - 1


def bits_of(words):
    return words.view(torch.int32)


class TopkCases:
    def test_random_rows_of_every_k(self):
        # Red if a winner of a rank or of a block is lost, doubled or out of order.
        for dtype in selection.DTYPES:
            for k in KS:
                for tp in (2, 3, 4):
                    with self.subTest(dtype=dtype, k=k, tp=tp):
                        logits = selection.random_logits(5, 1003, dtype, seed=k)
                        self.check_topk(logits, k=k, tp=tp)

    def test_all_winners_on_one_rank_or_in_one_block(self):
        # Red if a rank sends fewer than k of its own, or a block yields one winner.
        for first in (0, 130, 700):
            for k in KS:
                logits = selection.random_logits(2, 1003)
                best = torch.arange(first, first + k)
                logits[:, best] = torch.linspace(50, 60, k)
                with self.subTest(first=first, k=k):
                    ids = self.check_topk(logits, k=k).token_ids
                    self.assertEqual(ids[0].tolist(), best.flip(0).tolist())

    def test_equal_values_go_by_id(self):
        # Red if a tie at the k-th place, inside a block, across blocks or ranks, goes
        # to a later id, or the order among equal ones is another.
        vocab = 4 * 3000
        for ids in (
            (5, 6, 7, 8, 9),
            (11000, 5, 4000, 127, 128),
            (2999, 3000, 6000, 9000, 11999),
            (7010, 6005, 6500, 8999),
        ):
            for winner in ({}, {7000: 9.0}):
                values = {i: 7.0 for i in ids} | winner
                logits = selection.row_with(vocab, values, dtype=torch.bfloat16)
                for k in (2, 4):
                    expected = [*winner, *sorted(ids)][:k]
                    with self.subTest(ids=ids, winner=winner, k=k):
                        found = self.check_topk(logits, k=k).token_ids
                        self.assertEqual(found.tolist(), [expected])

    def test_constant_rows(self):
        # Red if equal values are not taken from the first ids of the first rank.
        for value in (-3.0, 0.0, -INF):
            ids = self.check_topk(torch.full((2, 4096), value), k=8).token_ids
            self.assertEqual(ids.tolist(), [list(range(8))] * 2)

    def test_signed_zeros_are_equal(self):
        # Red if zeros are ordered by their bits.
        logits = torch.full((2, 1000), -1.0)
        logits[:, [3, 5, 300, 900]] = torch.tensor([-0.0, 0.0, -0.0, 0.0])
        logits[1] = -logits[1].where(logits[1] == 0, 1.0)
        for transport in (lambda words: words, rewrite_zero_words):
            found = self.check_topk(logits, k=4, transport=transport)
            self.assertEqual(found.token_ids.tolist(), [[3, 5, 300, 900]] * 2)

    def test_nan_and_infinities_in_order(self):
        # Red if a NaN is taken before a number, or two infinities are one candidate.
        logits = torch.full((3, 1003), -INF)
        logits[0, [900, 4]] = INF
        logits[0, [10, 500]] = NAN
        logits[1, [10, 500]] = torch.tensor([NAN, 1.0])
        logits[2] = NAN
        found = self.check_topk(logits, k=4).token_ids.tolist()
        expected = [[4, 900, 0, 1], [500, 0, 1, 2], [0, 1, 2, 3]]
        self.assertEqual(found, expected)

    def test_fewer_columns_than_winners(self):
        # Red if the filler of a narrow or empty shard is a token, wins a tie against
        # a real -inf, or is missing.
        bounds = ((0, 1), (1, 1), (1, 3), (3, 8))
        for logits in (selection.random_logits(3, 8), torch.full((2, 8), -INF)):
            for k in (2, 4, 8):
                self.check_topk(logits, bounds, k=k)
        shard = torch.zeros((2, 3), device=self.device)
        words = shard_winner(shard, valid_width=2, vocab_start=6, k=4, impl=self.impl)
        self.assertEqual(words[:4, 0].tolist(), [0.0, 0.0, -INF, -INF])
        ids = bits_of(words)[5:, 0].tolist()
        self.assertEqual(ids, [6, 7, NO_TOKEN, NO_TOKEN])
        words = shard_winner(shard, valid_width=0, vocab_start=6, k=2, impl=self.impl)
        self.assertEqual(words[:3, :2].unique().tolist(), [-INF])
        self.assertEqual(bits_of(words)[3:, :2].unique().tolist(), [NO_TOKEN])

    def test_layout_and_padding_rows(self):
        # Red if the words are not k values, one log-sum-exp, k ids, or if the words of
        # padding rows are left as the allocator gave them.
        logits = selection.random_logits(5, 700).to(self.device)
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        words = shard_winner(
            logits, valid_width=700, vocab_start=16777216, k=3, impl=self.impl
        ).cpu()
        values, columns = logits.cpu().topk(3, dim=1)
        self.assertEqual(tuple(words.shape), (7, 8))
        self.assertTrue(torch.equal(words[:3, :5], values.T))
        torch.testing.assert_close(words[3, :5], logits.cpu().logsumexp(1))
        self.assertTrue(torch.equal(bits_of(words)[4:, :5], columns.T.int() + 2**24))
        self.assertFalse(bits_of(words[:, 5:].contiguous()).any())

    def test_merge_of_any_words(self):
        # Red if a combination of special words is merged in another order than by
        # value and id, a NaN value is taken, or an id leaves the vocabulary.
        specials = (0.0, -0.0, 1.0, 30.0, -30.0, 1e4, -1e4, INF, -INF, NAN)
        random, rows, tp, k = np.random.default_rng(0), 60, 3, 4
        words = torch.from_numpy(random.choice(specials, (tp, 2 * k + 1, rows))).float()
        ids = np.stack([random.permutation(1000)[: tp * k] for _ in range(rows)])
        ids = ids.T.reshape(tp, k, rows) + random.choice([0, -(2**31)], (tp, k, rows))
        bits_of(words)[:, k + 1 :] = torch.from_numpy(ids).int()
        found, logits, lse = merge_shard_winners(
            words.flatten(0, 1).to(self.device),
            rows=rows,
            vocab_size=901,
            k=k,
            impl=self.impl,
        )
        for row in range(rows):
            pairs = zip(words[:, :k, row].flatten().tolist(), ids[..., row].flatten())
            numbers = [(-v, int(i) & NO_TOKEN) for v, i in pairs if not math.isnan(v)]
            ordered = (sorted(numbers) + [(INF, NO_TOKEN)] * k)[:k]
            expected = [min(token_id, 900) for _, token_id in ordered]
            self.assertEqual(found[row].tolist(), expected)
            self.assertEqual(logits[row].tolist(), [-value for value, _ in ordered])
            parts = torch.logsumexp(words[:, k, row].double(), 0)
            torch.testing.assert_close(
                lse[row].cpu().double(), parts, rtol=2e-5, atol=2e-5, equal_nan=True
            )

    def test_many_ranks_and_rows_advance_positions(self):
        # Red if a rank or row is left out, a padding row is merged, or positions
        # advance otherwise than by one.
        rows, vocab, tp, k = 70, 1003, 12, 2
        logits = selection.random_logits(rows, vocab)
        parts = [
            shard_winner(
                logits[:, start:end].to(self.device),
                valid_width=end - start,
                vocab_start=start,
                k=k,
                impl=self.impl,
            )
            for start, end in even_bounds(vocab, tp)
        ]
        positions = torch.arange(3 * rows, device=self.device)
        ids, _, _ = merge_shard_winners(
            torch.cat(parts),
            rows=rows,
            vocab_size=vocab,
            k=k,
            positions=positions[::3],
            impl=self.impl,
        )
        self.assertEqual(ids.cpu().tolist(), logits.topk(k, dim=1).indices.tolist())
        expected = torch.arange(3 * rows)
        expected[::3] += 1
        self.assertTrue(torch.equal(positions.cpu(), expected))

    def test_no_rows(self):
        # Red if an empty batch reaches a reduction over no rows.
        shard = torch.zeros((0, 16), device=self.device)
        words = shard_winner(shard, valid_width=16, vocab_start=0, k=4, impl=self.impl)
        self.assertEqual(tuple(words.shape), (9, 0))
        ids, logits, lse = merge_shard_winners(
            words.repeat(2, 1), rows=0, vocab_size=32, k=4, impl=self.impl
        )
        shapes = tuple(map(tuple, (ids.shape, logits.shape, lse.shape)))
        self.assertEqual(shapes, ((0, 4), (0, 4), (0,)))

    def test_bad_arguments_are_refused(self):
        # Red if a check is dropped: ids out of range, or writes past a buffer.
        shard = torch.zeros((2, 40), device=self.device)
        for k in (0, -1, MAX_K + 1):
            with self.assertRaisesRegex(ValueError, f"k={k}"):
                shard_winner(shard, valid_width=40, vocab_start=0, k=k, impl=self.impl)
        words = shard_winner(shard, valid_width=40, vocab_start=0, k=4, impl=self.impl)
        tokens = torch.zeros((2, 3), dtype=torch.int64, device=self.device)
        for options, message in (
            (dict(k=2), "5 words a rank"),
            (dict(k=4, vocab_size=3), "k=4: there are 3 tokens"),
            (dict(k=4, draft_tokens=tokens), "draft_tokens"),
            (dict(k=4, positions=tokens[:1, 0]), "positions"),
        ):
            with self.subTest(message=message):
                with self.assertRaisesRegex(ValueError, message):
                    merge_shard_winners(words, rows=2, impl=self.impl, **options)
