"""Cases of selection, padding and shards of the packed draft words.

Mix-ins for a ``ShardWinnerCase``, whose ``impl`` and ``device`` they run on.
"""

import math

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    padded_rows,
    shard_winner,
)
from sglang.test.kits.shard_winner_kit import (
    rewrite_zero_words,
)

BF16 = torch.bfloat16
DTYPES = (BF16, torch.float16, torch.float32)


def random_logits(rows, vocab, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocab, generator=generator) * 3).to(dtype)


def row_with(vocab, values, filler=-1.0, dtype=torch.float32):
    """One row of ``filler`` with ``values`` at some ids."""
    row = torch.full((1, vocab), filler, dtype=dtype)
    for token_id, value in values.items():
        row[0, token_id] = value
    return row


class SelectionCases:
    def test_random_rows(self):
        # Red if a shard is reduced in its own dtype, or a chunk or a rank is dropped.
        for dtype in DTYPES:
            for tp in (2, 4, 8):
                for rows in (1, 3, 7, 32, 64, 128, 256):
                    with self.subTest(dtype=dtype, tp=tp, rows=rows):
                        self.check(random_logits(rows, 1003, dtype, seed=rows), tp=tp)

    def test_many_chunks_of_columns_and_rows(self):
        # Red if the offset of a column chunk or of a tile of rows is lost.
        for rows, vocab, tp in ((3, 248320, 2), (64, 65536 + 130, 2), (1100, 2100, 2)):
            logits = random_logits(rows, vocab, BF16)
            best = torch.randint(vocab, (rows,))
            logits[torch.arange(rows), best] = 40.0
            with self.subTest(rows=rows, vocab=vocab):
                self.assertEqual(
                    self.check(logits, tp=tp).token_ids.tolist(), best.tolist()
                )

    def test_equal_maxima_take_the_smallest_id(self):
        # Red if a tie inside a block, across blocks, chunks or ranks goes to a later id.
        # 64 rows: a chunk is 8192 columns with one torch thread.
        width, rows = 20000, 64
        pairs = ((5, 6), (5, 127), (127, 128), (5, 300), (8191, 8192), (9000, 19999))
        pairs += ((19999, 20000), (10, 79999), (39999, 40001))
        # One lane of a kernel sees both: its block is 1024 columns of BF16.
        pairs += ((5, 5 + 1024), (1030, 1030 + 4096))
        for first, second in pairs:
            for shift in (0, 3 * width):
                if second + shift < 4 * width:
                    ids = (first + shift, second + shift)
                    logits = row_with(4 * width, {i: 7.0 for i in ids}, dtype=BF16)
                    with self.subTest(ids=ids):
                        selection = self.check(logits.repeat(rows, 1))
                        self.assertEqual(selection.token_ids.tolist(), [ids[0]] * rows)

    def test_constant_row_takes_id_zero(self):
        # Red if the merge prefers a later rank or the log-sum-exp forgets one.
        for value in (-3.0, 0.0, 2.0):
            selection = self.check(torch.full((2, 4096), value))
            self.assertEqual(selection.token_ids.tolist(), [0, 0])
            probability = torch.exp(selection.logits - selection.logsumexp)
            torch.testing.assert_close(
                probability.cpu(), torch.full((2,), 1 / 4096), rtol=2e-5, atol=0
            )

    def test_signed_zeros_tie(self):
        # Red if zeros are compared as bits: the lower id wins whatever its sign.
        for dtype in DTYPES:
            for low, high in ((-0.0, 0.0), (0.0, -0.0)):
                for ids in ((3, 9), (3, 900)):
                    logits = row_with(1000, {ids[0]: low, ids[1]: high}, dtype=dtype)
                    with self.subTest(dtype=dtype, low=low, ids=ids):
                        selection = self.check(logits)
                        self.assertEqual(selection.token_ids.tolist(), [3])
                        # A transport may flip a zero's sign: +0.0 on every rank.
                        self.assertFalse(selection.logits.signbit().any())

    def test_winner_is_id_zero_on_a_plane_that_rewrites_zero_words(self):
        # Red if ids keep the sign bit that the push plane puts on an all-zero word.
        logits = torch.cat([row_with(64, {0: 5.0}), row_with(64, {0: 0.0})])
        selection = self.check(logits, transport=rewrite_zero_words)
        self.assertEqual(selection.token_ids.tolist(), [0, 0])

    def test_winner_is_the_last_token_of_a_padded_shard(self):
        # Red if the last valid column is cut off together with the padding.
        for vocab in (1001, 151666):
            logits = random_logits(3, vocab, BF16)
            logits[:, -1] = 50.0
            self.assertEqual(self.check(logits).token_ids.tolist(), [vocab - 1] * 3)

    def test_ids_past_24_bits_are_exact(self):
        # Red if an id passes through floating-point arithmetic.
        for token_id in (16777217, 33554431, 2**31 - 2):
            words = shard_winner(
                row_with(8, {7: 1.0}).to(self.device),
                valid_width=8,
                vocab_start=token_id - 7,
                impl=self.impl,
            )
            ids, _, _ = merge_shard_winners(
                words, rows=1, vocab_size=2**31 - 1, impl=self.impl
            )
            self.assertEqual(ids.tolist(), [token_id])

    def test_one_fp32_step_decides_only_in_fp32(self):
        # Red if FP32 logits are rounded, or BF16 ones are told apart.
        step = torch.nextafter(torch.tensor(3.0), torch.tensor(4.0)).item()
        logits = row_with(1000, {10: 3.0, 700: step})
        self.assertEqual(self.check(logits).token_ids.tolist(), [700])
        self.assertEqual(self.check(logits.bfloat16()).token_ids.tolist(), [10])

    def test_logits_of_one_row_differ_from_the_next(self):
        # Red if a row's words are stored at another row, or rows are not padded to 4.
        logits = torch.cat([row_with(64, {row * 7: row + 1.0}) for row in range(5)])
        selection = self.check(logits)
        self.assertEqual(selection.logits.tolist(), [1.0, 2.0, 3.0, 4.0, 5.0])
        words = shard_winner(
            logits.to(self.device), valid_width=64, vocab_start=0, impl=self.impl
        )
        self.assertEqual(tuple(words.shape), (3, padded_rows(5)))
        self.assertEqual(padded_rows(5), 8)


class ShardCases:
    def test_padding_columns_never_win(self):
        # Red if columns past the valid width are read at all.
        for dtype in DTYPES:
            logits = random_logits(4, 1003, dtype)
            for padding in (1e30, float("nan"), float("inf")):
                for columns in (1, 61):
                    with self.subTest(dtype=dtype, padding=padding, columns=columns):
                        self.check(logits, padding=padding, padding_columns=columns)

    def test_short_and_empty_last_shard(self):
        # Red if an empty rank wins a tie, brings a NaN, or shifts the ids of others.
        for last in (0, 1, 17):
            bounds = ((0, 400), (400, 800), (800, 800 + last))
            for logits in (random_logits(5, 800 + last), torch.zeros(5, 800 + last)):
                with self.subTest(last=last):
                    self.check(logits, bounds, padding_columns=64)
                    self.check(-1e30 * torch.ones_like(logits), bounds)

    def test_empty_shards_anywhere_lose_to_minus_infinity(self):
        # Red if an empty shard has a finite filler or an id that wins a tie.
        for bounds in (((0, 0), (0, 5), (5, 5)), ((0, 0), (0, 0), (0, 5))):
            self.check(torch.full((2, 5), float("-inf")), bounds)
            self.check(random_logits(2, 5), bounds)
        # Words of a shard that starts at id 4 beside those of an empty one.
        shard = torch.full((2, 4), float("-inf"), device=self.device)
        words = [
            shard_winner(shard, valid_width=width, vocab_start=4, impl=self.impl)
            for width in (0, 4)
        ]
        ids, _, _ = merge_shard_winners(
            torch.cat(words), rows=2, vocab_size=8, impl=self.impl
        )
        self.assertEqual(ids.tolist(), [4, 4])

    def test_vocabularies_that_do_not_divide(self):
        # Red if the shard's start is computed as rank * V // tp.
        for vocab, tp in ((5, 8), (1, 4), (1003, 7), (151666, 4), (163840, 12)):
            with self.subTest(vocab=vocab, tp=tp):
                self.check(random_logits(3, vocab, BF16), tp=tp)

    def test_uneven_shards(self):
        # Red if the merge assumes equal widths.
        bounds = ((0, 1), (1, 900), (900, 900), (900, 1003))
        self.check(random_logits(7, 1003), bounds)

    def test_rows_of_a_wider_buffer(self):
        # Red if rows are taken to be contiguous.
        for dtype in DTYPES:
            self.check(random_logits(9, 1003, dtype), row_gap=13)
            self.check(random_logits(1, 1003, dtype), row_gap=13)

    def test_rows_that_are_transposed_are_refused(self):
        # Red if a column stride other than 1 is read as if it were 1.
        with self.assertRaisesRegex(ValueError, "unit column stride"):
            shard_winner(
                random_logits(8, 4).t().to(self.device), valid_width=8, vocab_start=0
            )

    def test_bad_arguments_are_refused(self):
        # Red if a check is dropped: each of these would give ids out of range.
        logits = random_logits(2, 8).to(self.device)
        for options, message in (
            (dict(valid_width=9, vocab_start=0), "valid_width=9"),
            (dict(valid_width=-1, vocab_start=0), "valid_width=-1"),
            (dict(valid_width=8, vocab_start=-1), "vocab_start=-1"),
            (dict(valid_width=8, vocab_start=2**31 - 8), "vocab_start=2147483640"),
            (dict(valid_width=8, vocab_start=0, softcap=0.0), "softcap=0"),
            (dict(valid_width=8, vocab_start=0, softcap=math.nan), "softcap=nan"),
            (dict(valid_width=8, vocab_start=0, k=17), "k=17"),
            (dict(valid_width=8, vocab_start=0, impl="fast"), "impl='fast'"),
        ):
            with self.subTest(message=message):
                with self.assertRaisesRegex(ValueError, message):
                    shard_winner(logits, **options)
        words = logits.new_zeros((4, 4))
        for gathered, rows, message in (
            (words, 4, "3 words a rank"),
            (words[:3], 5, "rows=5"),
            (words[:3].double(), 4, "FP32"),
        ):
            with self.subTest(message=message):
                with self.assertRaisesRegex(ValueError, message):
                    merge_shard_winners(gathered, rows=rows)
        with self.assertRaisesRegex(ValueError, "vocab_size=2147483648"):
            merge_shard_winners(words[:3], rows=4, vocab_size=2**31)
