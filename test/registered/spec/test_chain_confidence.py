"""Probabilities of a chain, from the draft's logits to its verification."""

import unittest
from types import SimpleNamespace

import torch

from sglang.srt.layers.dense_logsumexp import (
    DenseLogsumexp,
    VocabShards,
    dense_logsumexp,
)
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.speculative.chain_confidence import ChainConfidence, token_probability
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

VOCAB = 301


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, VOCAB, generator=generator) * 3


def dense_output(logits: torch.Tensor) -> LogitsProcessorOutput:
    return LogitsProcessorOutput(
        next_token_logits=logits, logits_logsumexp=dense_logsumexp(logits)
    )


def bits(values: torch.Tensor) -> list:
    return values.contiguous().view(torch.int32).tolist()


class TestDenseLogsumexp(CustomTestCase):
    def test_against_fp64(self):
        """Red when a shard is left out, counted twice, or padding is read."""
        logits = random_logits(7)
        wanted = logits.double().logsumexp(-1)
        # One rank; three; a last shard of one column; empty shards at the end.
        for count, width in ((1, 0), (3, 128), (4, 100), (8, 64)):
            got = dense_logsumexp(logits, VocabShards(count, width)).double()
            with self.subTest(count=count, width=width):
                self.assertLess((got - wanted).abs().max().item(), 2e-5)

    def test_nan_stays_and_no_rows(self):
        """Red when a NaN row looks sound, or an idle rank fails."""
        logits = random_logits(2)
        logits[1, 200] = float("nan")
        got = dense_logsumexp(logits, VocabShards(2, 192))
        self.assertEqual(got.isnan().tolist(), [False, True])
        self.assertEqual(dense_logsumexp(logits[:0]).shape, (0,))

    def test_the_rows_to_hand_on(self):
        """Red when rows are reduced after their selection: the packed path reduces
        first."""
        logits, rows = random_logits(6), torch.tensor([4, 1])
        compute = DenseLogsumexp(VocabShards(2, 192))
        self.assertEqual(bits(compute(logits, rows)), bits(compute(logits)[rows]))


class TestTokenProbability(CustomTestCase):
    def test_selected_rows_of_a_dense_output(self):
        """Red when logits and log-sum-exp of different rows or tokens meet."""
        logits = random_logits(8)
        rows = torch.tensor([6, 1, 3])
        token_ids = torch.tensor([[5], [300], [0]])
        got = token_probability(dense_output(logits), token_ids, rows)
        wanted = logits.double().softmax(-1)[rows, token_ids[:, 0]].unsqueeze(-1)
        self.assertEqual(got.shape, (3, 1))
        self.assertLess((got.double() - wanted).abs().max().item(), 2e-5)

    def test_a_lost_logsumexp_is_loud(self):
        """Red when a chain is reported without a probability, or with another row's."""
        for lost in (None, torch.zeros(3)):
            output = LogitsProcessorOutput(random_logits(2), logits_logsumexp=lost)
            with self.assertRaisesRegex(RuntimeError, "logits_logsumexp"):
                token_probability(output, torch.zeros(2, 1, dtype=torch.int64))


class TestChainConfidence(CustomTestCase):
    def setUp(self):
        self.confidence = ChainConfidence(max_rows=8, max_steps=4, device="cpu")

    def chain(self, rows: int, steps: int, replays: bool, seed: int = 0):
        """One drafted chain; what it is and what was collected."""
        draft_input = SimpleNamespace(draft_probability=torch.rand(rows, 1))
        verify_input = SimpleNamespace()
        self.confidence.begin(rows, steps, replays)
        expected = [draft_input.draft_probability]
        for column in range(1, steps):
            # A captured graph computes its padding rows as well.
            logits = random_logits(8 if replays else rows, seed * 10 + column)
            output = dense_output(logits)
            token_ids = logits.argmax(-1, keepdim=True)
            self.confidence.record(column, output, token_ids)
            expected.append(token_probability(output, token_ids)[:rows])
        self.confidence.attach(verify_input, draft_input, rows, steps)
        return torch.cat(expected, dim=1), verify_input.draft_probability

    def test_chains_of_other_sizes_in_turn(self):
        """Red when rows or steps of another chain, or of padding, are left over."""
        for seed, (rows, steps, replays) in enumerate(
            ((8, 4, True), (3, 2, True), (12, 3, False), (5, 4, True), (1, 1, False))
        ):
            expected, got = self.chain(rows, steps, replays, seed)
            with self.subTest(rows=rows, steps=steps, replays=replays):
                self.assertEqual(bits(got), bits(expected))

    def test_a_result_outlives_the_next_chain(self):
        """Red when a result is a view of the static buffer."""
        expected, first = self.chain(5, 4, True, seed=1)
        self.chain(8, 4, True, seed=2)
        self.assertEqual(bits(first), bits(expected))

    def test_an_idle_batch(self):
        """Red when a rank without requests fails, or wants a seed."""
        verify_input = SimpleNamespace()
        self.confidence.begin(0, 3, False)
        lost = SimpleNamespace(draft_probability=None)
        self.confidence.attach(verify_input, lost, 0, 3)
        self.assertEqual(verify_input.draft_probability.shape, (0, 3))

    def test_a_lost_seed_is_loud(self):
        """Red when position 0 is reported as 0 because nobody carried it."""
        self.confidence.begin(2, 3, False)
        lost = SimpleNamespace(draft_probability=None)
        with self.assertRaisesRegex(RuntimeError, "draft_probability is missing"):
            self.confidence.attach(SimpleNamespace(), lost, 2, 3)


if __name__ == "__main__":
    unittest.main()
