"""Cases of how the Triton kernels of the packed draft words split their work.

Mix-ins for a ``ShardWinnerCase``, in the interpreter and on a GPU.
"""

from typing import Tuple
from unittest import mock

import numpy as np
import torch

from sglang.kernels.ops.speculative import shard_winner_triton as launch
from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    padded_rows,
    shard_winner,
)
from sglang.test.kits import shard_winner_numeric_cases as numerics
from sglang.test.kits import shard_winner_selection_cases as selection
from sglang.test.kits.shard_winner_kit import (
    Bounds,
    assert_matches_reference,
    even_bounds,
    reference_selection,
)

# Relative: a division within 2 FP32 steps, a tanh within 2, a product.
SOFTCAP_TOLERANCE = 2.0**-20
INF, NAN = float("inf"), float("nan")
SPECIALS = (0.0, -0.0, 1.0, 30.0, -30.0, 1e4, -1e4, INF, -INF, NAN)
"""Values that a shard may hold beside random ones."""


def special_shards(
    random: np.random.Generator, most_rows: int, vocabs: Tuple[int, int], dtype
) -> Tuple[torch.Tensor, Bounds]:
    """Logits with none, one, a third or all ``SPECIALS`` in a row, and random shards."""
    rows, vocab = int(random.integers(1, most_rows)), int(random.integers(*vocabs))
    values = random.standard_normal((rows, vocab)) * random.choice([1, 20, 1e4])
    chosen = random.choice(SPECIALS, (rows, vocab))
    share = random.choice([0.0, 1.5 / vocab, 0.3, 1.0], (rows, 1))
    values = np.where(random.random((rows, vocab)) < share, chosen, values)
    cuts = sorted(random.integers(0, vocab + 1, int(random.integers(0, 4))))
    edges = [0, *map(int, cuts), vocab]
    return torch.from_numpy(values).to(dtype), list(zip(edges, edges[1:]))


class KernelCases:
    """What depends on how the kernels split and address their work."""

    def test_special_values_in_small_chunks(self):
        # Red if a chunk's maximum, sum, NaN or first id is lost between the blocks of
        # a lane, the lanes of a chunk, or the chunks of a row.
        small = dict(WARPS=1, VECTOR_BYTES=8, UNROLL=2, TARGET_PROGRAMS=40)
        random = np.random.default_rng(0)
        for example in range(24):
            dtype = numerics.DTYPES[example % 3]
            logits, bounds = special_shards(random, 10, (1, 2000), dtype)
            with self.subTest(example=example), mock.patch.multiple(launch, **small):
                self.check(logits, bounds, row_gap=example % 3)

    def test_work_is_split_as_on_a_gpu(self):
        # Red if the combination of the chunks drops one, or takes a later one in a tie.
        with mock.patch.multiple(launch, PROGRAM_ROWS=1, TARGET_PROGRAMS=528):
            for rows, width in ((1, 9000), (5, 5000)):
                logits = selection.random_logits(rows, width, torch.bfloat16)
                logits[0, [4000, 1000]] = 50.0
                with self.subTest(rows=rows, width=width):
                    ids = self.check(logits, tp=1).token_ids.tolist()
                    self.assertEqual(ids[0], 1000)

    def test_padding_rows_are_zero_words(self):
        # Red if the words of padding rows are left as the allocator gave them.
        self.assertTrue(torch.utils.deterministic.fill_uninitialized_memory)
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        for rows in (1, 5, 67):
            for width in (40, 9000):
                logits = selection.random_logits(rows, width).to(self.device)
                words = shard_winner(
                    logits, valid_width=width, vocab_start=0, impl=self.impl
                )
                with self.subTest(rows=rows, width=width):
                    self.assertEqual(words.shape[1], padded_rows(rows))
                    padding = words[:, rows:].contiguous().view(torch.int32)
                    self.assertFalse(padding.any())
                    self.assertTrue(words[:2, :rows].isfinite().all())

    def test_row_offsets_past_31_bits(self):
        # Red if a row's offset is computed in 32 bits: row 2 would be read 2^32
        # elements before its place, where this buffer holds other values.
        logits = self.rows_past_31_bits()
        rows = logits.shape[0]
        words = shard_winner(logits, valid_width=64, vocab_start=0, impl=self.impl)
        value, column = logits.float().cpu().max(dim=1)
        self.assertEqual(words[0, :rows].tolist(), value.tolist())
        ids = words.view(torch.int32)[2, :rows]
        self.assertEqual(ids.tolist(), column.tolist())

    def test_words_of_an_empty_shard(self):
        # Red if a lane without a column has an id: an empty shard could win a tie.
        shard = torch.zeros(3, 8, device=self.device)
        words = shard_winner(shard, valid_width=0, vocab_start=5, impl=self.impl)
        self.assertEqual(words[:2, :3].unique().tolist(), [-INF])
        ids = words.view(torch.int32)[2, :3]
        self.assertEqual(ids.unique().tolist(), [2**31 - 1])

    def test_merge_of_many_rows_and_ranks(self):
        # Red if a program of the merge takes another's rows, ranks are merged out of
        # range, or a stride of the buffers it updates is ignored.
        rows, vocab, tp = 70, 1003, 12
        logits = selection.random_logits(rows, vocab)
        parts = []
        for start, end in even_bounds(vocab, tp):
            shard = logits[:, start:end].to(self.device)
            parts.append(
                shard_winner(
                    shard, valid_width=end - start, vocab_start=start, impl=self.impl
                )
            )
        draft_tokens = torch.full((rows, 9), -1, device=self.device)
        positions = torch.arange(3 * rows, device=self.device)
        ids, best, _ = merge_shard_winners(
            torch.cat(parts),
            rows=rows,
            vocab_size=vocab,
            draft_tokens=draft_tokens[:, 1::3],
            column=2,
            positions=positions[::3],
            impl=self.impl,
        )
        value, column = logits.max(dim=1)
        self.assertEqual(ids.tolist(), column.tolist())
        self.assertEqual(best.tolist(), value.tolist())
        expected = torch.full((rows, 9), -1)
        expected[:, 7] = column
        self.assertTrue(torch.equal(draft_tokens.cpu(), expected))
        expected = torch.arange(3 * rows)
        expected[::3] += 1
        self.assertTrue(torch.equal(positions.cpu(), expected))


class SoftcapWithinALastBit:
    """The CPU's tanh, a GPU's and the interpreter's substitute round differently."""

    def check(self, logits, *args, softcap=None, **options):
        actual = self.select(logits, *args, softcap=softcap, **options)
        expected = reference_selection(logits, softcap)
        if softcap is not None:
            best, exact = actual.logits, expected.logits.float()
            close = torch.isclose(best, exact, rtol=SOFTCAP_TOLERANCE, atol=0.0)
            actual = actual._replace(logits=torch.where(close, exact, best))
        assert_matches_reference(actual, expected)
        return actual
