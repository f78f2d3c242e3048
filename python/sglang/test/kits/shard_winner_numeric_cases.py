"""Cases of NaN, infinities, log-sum-exp and softcap of the packed draft words.

Mix-ins for a ``ShardWinnerCase``, whose ``impl`` and ``device`` they run on.
"""

import torch

from sglang.srt.speculative.draft_confidence import selected_probability
from sglang.test.kits.shard_winner_kit import even_bounds, reference_selection

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
INF, NAN = float("inf"), float("nan")
VOCAB, TP = 1003, 4


def random_logits(rows, vocab=VOCAB, dtype=torch.float32, scale=3.0):
    generator = torch.Generator().manual_seed(rows)
    return (torch.randn(rows, vocab, generator=generator) * scale).to(dtype)


def rank_columns(*ranks):
    """Ids of some ranks' shards."""
    bounds = even_bounds(VOCAB, TP)
    return torch.cat([torch.arange(*bounds[rank]) for rank in ranks])


class SpecialValueCases:
    def probability(self, selection):
        return selected_probability(selection.logits, selection.logsumexp).cpu()

    def test_nan_never_beats_a_number(self):
        # Red if a NaN is compared with a number: torch's and Triton's maxima keep it.
        for dtype in DTYPES:
            for columns in ([0], [1002], [250, 251, 700], list(range(251))):
                logits = random_logits(6, dtype=dtype)
                logits[::2, columns] = NAN
                with self.subTest(dtype=dtype, columns=columns[:3]):
                    selection = self.check(logits)
                    self.assertTrue(selection.logsumexp[::2].isnan().all())
                    self.assertTrue(selection.logsumexp[1::2].isfinite().all())

    def test_nan_on_one_rank_and_on_all(self):
        # Red if a shard without a number beats one with a very small number.
        for ranks in ((0,), (3,), (1, 2), (0, 1, 2)):
            logits = random_logits(3) - 1e30
            logits[:, rank_columns(*ranks)] = NAN
            with self.subTest(ranks=ranks):
                self.check(logits)
        selection = self.check(torch.full((3, VOCAB), NAN))
        self.assertEqual(selection.token_ids.tolist(), [0, 0, 0])
        self.assertEqual(self.probability(selection).tolist(), [0.0, 0.0, 0.0])

    def test_nan_beside_infinities(self):
        # Red if an infinity hides a NaN from the log-sum-exp, or the NaN hides it.
        for value in (INF, -INF):
            logits = random_logits(2)
            logits[0] = -INF
            logits[:, 600] = value
            logits[:, 100] = NAN
            with self.subTest(value=value):
                selection = self.check(logits)
                self.assertTrue(selection.logsumexp.isnan().all())

    def test_nan_in_one_tile_of_rows_only(self):
        # Red if the second look at a NaN row changes or moves its neighbours.
        logits = random_logits(1100, 1090)
        logits[torch.arange(7, 1100, 97), torch.arange(12) * 90] = NAN
        self.check(logits, tp=1)

    def test_plus_infinity_wins_at_its_smallest_id(self):
        # Red if inf - inf reaches the log-sum-exp: probability would be NaN, not 0.
        for ids in ([5], [700], [300, 301], [249, 750, 1002]):
            logits = random_logits(3)
            logits[:, ids] = INF
            with self.subTest(ids=ids):
                selection = self.check(logits)
                self.assertEqual(selection.token_ids.tolist(), [ids[0]] * 3)
                self.assertEqual(self.probability(selection).tolist(), [0.0] * 3)

    def test_row_of_minus_infinity(self):
        # Red if exp(-inf - -inf) becomes a NaN or the id leaves the vocabulary.
        for dtype in DTYPES:
            for bounds in (None, ((0, 0), (0, 1003)), ((0, 1000), (1000, 1003))):
                selection = self.check(
                    torch.full((2, VOCAB), -INF, dtype=dtype), bounds
                )
                self.assertEqual(selection.token_ids.tolist(), [0, 0])
                self.assertEqual(selection.logsumexp.tolist(), [-INF, -INF])
                self.assertEqual(self.probability(selection).tolist(), [0.0, 0.0])

    def test_ranks_of_minus_infinity_beside_finite_ones(self):
        # Red if a rank without mass, or a chunk without it, adds to the sum or a NaN.
        for scale in (1.0, 1e4, 1e37):
            for ranks in ((0,), (3,), (0, 1, 2)):
                logits = random_logits(3, scale=scale)
                logits[:, rank_columns(*ranks)] = -INF
                with self.subTest(scale=scale, ranks=ranks):
                    self.check(logits)
        chunks = torch.full((64, 30000), -INF)
        chunks[:, 20000] = -1e4
        self.check(chunks, tp=1)

    def test_extremes_of_the_dtypes(self):
        # Red if a difference of two finite numbers overflows into a NaN.
        for dtype in DTYPES:
            largest = torch.finfo(dtype).max
            tiny = torch.finfo(dtype).smallest_normal / 2
            for values in ((largest, -largest), (-largest, tiny), (-tiny, -largest)):
                logits = torch.full((2, VOCAB), values[1], dtype=dtype)
                logits[:, 777] = values[0]
                with self.subTest(dtype=dtype, values=values):
                    self.check(logits)


class LogSumExpCases:
    def test_magnitudes(self):
        # Red if the exponentials are not shifted by a maximum, or not rescaled when a
        # later chunk or rank has a larger one.
        for dtype in DTYPES:
            for scale in (1e-3, 1.0, 30.0, 1e4):
                for offset in (0.0, 1e4, -1e4):
                    logits = (random_logits(3, 20000) * scale + offset).to(dtype)
                    with self.subTest(dtype=dtype, scale=scale, offset=offset):
                        self.check(logits)

    def test_chunks_with_rising_and_falling_maxima(self):
        # Red if a chunk's sum is kept at the scale of an earlier maximum.
        rising = torch.linspace(-200, 200, 30000).repeat(64, 1)
        for logits in (rising, rising.flip(1)):
            self.check(logits, tp=1)
            self.check(logits, tp=4)

    def test_probability_of_peaked_and_uniform_rows(self):
        # Red if the log-sum-exp lacks a rank (above 1) or counts one twice.
        logits = torch.zeros(2, VOCAB)
        logits[0, 500] = 128.0
        selection = self.check(logits)
        peaked, uniform = selected_probability(*selection[1:]).tolist()
        self.assertEqual(peaked, 1.0)
        # A log-sum-exp that rounds below the logit must not give more than 1.
        rounded = selected_probability(torch.tensor(9.0), torch.tensor(8.999999))
        self.assertEqual(rounded.item(), 1.0)
        self.assertAlmostEqual(uniform, 1 / VOCAB, delta=2e-5 / VOCAB)

    def test_probability_stays_exact_up_to_128(self):
        # Red if FP32 is left for a narrower type on the way: its error is above 2e-5.
        logits = random_logits(64, 5000, scale=1.0)
        logits = logits / logits.abs().amax(dim=1, keepdim=True) * 128
        selection = self.check(logits)
        expected = reference_selection(logits)
        exact = torch.exp(expected.logits - expected.logsumexp)
        actual = selected_probability(*selection[1:]).cpu().double()
        self.assertLess((actual - exact).abs().max().item(), 2e-5)


class SoftcapCases:
    def test_softcap_comes_before_the_reduction(self):
        # Red if softcap is left out: the logit and the log-sum-exp both change.
        for dtype in DTYPES:
            for rows, vocab, tp in ((3, VOCAB, TP), (64, 40000, 2), (1, 70001, 1)):
                logits = random_logits(rows, vocab, dtype, scale=20.0)
                with self.subTest(dtype=dtype, rows=rows, vocab=vocab):
                    selection = self.check(logits, tp=tp, softcap=30.0)
                    self.assertLessEqual(selection.logits.max().item(), 30.0)

    def test_saturated_softcap_ties(self):
        # Red if the winner is found before the softcap: 5000 would beat 4000.
        logits = random_logits(2)
        logits[:, 900], logits[:, 300], logits[:, 301] = 5000.0, 4000.0, 4500.0
        selection = self.check(logits, softcap=30.0)
        self.assertEqual(selection.token_ids.tolist(), [300, 300])

    def test_softcap_and_special_values(self):
        # Red if softcap turns an infinity into a NaN or lets a NaN win.
        logits = random_logits(4)
        logits[0, 10], logits[1, 20], logits[2] = INF, NAN, -INF
        self.check(logits, softcap=30.0)
