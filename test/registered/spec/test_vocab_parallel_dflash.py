"""DFlash blocks over gloo ranks: packed selection against SGLang's dense samplers."""

import unittest

import numpy as np

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import dflash_rank_kit
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=60, suite="base-a-test-cpu")

WORLD_SIZES = (2, 3, 4)
DRAFTED = dflash_rank_kit.BLOCK - 1
INF = float("inf")
NAN = float("nan")


def case(vocab, bs, dtype="float32", whole=False, seed=0, special=None):
    return dict(
        vocab=vocab, bs=bs, dtype=dtype, whole=whole, seed=seed, special=special
    )


CASES = [
    case(1003, 1),
    case(1003, 3, "bfloat16", seed=1),
    case(1003, 8, whole=True, seed=2),
    case(1003, 7, "bfloat16", whole=True, seed=3),
    # More rows than the eager path multiplies at a time.
    case(1003, 80, "bfloat16", whole=True, seed=4),
    # 64 + 64 + 2 columns over three ranks, and an empty fourth.
    case(130, 5, whole=True, seed=5),
    # A vocabulary of one rank: every other one is empty.
    case(50, 4, whole=True, seed=6),
]


def softmax_of(logits, ids):
    """Probability FP64 of the ids under ``[rows, vocab]`` logits."""
    logits = logits.astype(np.float64)
    top = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits - top)
    return weights[np.arange(len(ids)), ids] / weights.sum(axis=1)


class TestDFlashBlocks(CustomTestCase):
    def assert_same_on_all_ranks(self, results, names):
        for name in names:
            for result in results[1:]:
                same = np.array_equal(result[name], results[0][name], equal_nan=True)
                self.assertTrue(same, name)

    def test_packed_tokens_are_the_dense_ones(self):
        """Red if ids lose their offset, a tie goes to another rank, or padding wins."""
        for world_size in WORLD_SIZES:
            per_rank = run_ranks(dflash_rank_kit.blocks, world_size, CASES)
            for index, one in enumerate(CASES):
                results = [rank[index] for rank in per_rank]
                result = results[0]
                with self.subTest(world_size=world_size, **one):
                    self.assert_same_on_all_ranks(
                        results, ("packed_graph", "packed_eager", "probability")
                    )
                    expected = result["logits"].argmax(axis=1)
                    for name in ("dense_eager", "packed_eager", "packed_graph"):
                        self.assertEqual(result[name].tolist(), expected.tolist(), name)
                    if "dense_graph" in result:
                        self.assertEqual(
                            result["dense_graph"].tolist(), expected.tolist()
                        )
                    self.check_probability(result, expected)

    def check_probability(self, result, expected):
        probability = softmax_of(result["logits"], expected)
        np.testing.assert_allclose(
            result["probability"], probability, atol=2e-5, rtol=0
        )

    def test_the_worker_folds_the_packed_sampler(self):
        """Red if the worker's builder or its eager twin stays dense when installed."""
        result = run_ranks(dflash_rank_kit.blocks, 2, [case(1003, 2)])[0][0]
        self.assertEqual(result["dense_kind"], "_DflashDraftSampler")
        self.assertEqual(result["packed_kind"], "PackedDFlashSampler")

    def test_one_exchange_a_block(self):
        """Red if a block takes a second collective, or another width of words."""
        for world_size in WORLD_SIZES:
            for dtype, item in (("float32", 4), ("bfloat16", 2)):
                one = case(1003, 80, dtype)
                result = run_ranks(dflash_rank_kit.blocks, world_size, [one])[0][0]
                rows = 80 * DRAFTED
                packed = {"all_gather": (1, world_size * rows * 12)}
                dense = {"all_gather": (2, world_size * rows * (item + 8))}
                chunks = {"all_gather": (4, world_size * rows * (item + 8))}
                self.assertEqual(
                    result["counts"],
                    {
                        "packed_graph": packed,
                        "packed_eager": packed,
                        "dense_graph": dense,
                        "dense_eager": chunks,
                    },
                )

    def test_nan_and_infinities(self):
        """Red if a NaN wins, an infinity does not, or a probability becomes NaN.

        Dense picks a NaN on the CPU, and an id past the vocabulary where an empty rank's
        filler beats a row of -inf: the packed path does neither.
        """
        everywhere = {column: -INF for column in range(130)}
        cases = [
            case(130, 2, special={70: NAN}),
            case(130, 2, special={70: NAN, 40: INF, 90: INF}),
            case(130, 2, special={3: -INF, 129: -INF}),
            case(130, 2, special=everywhere),
        ]
        per_rank = run_ranks(dflash_rank_kit.blocks, 4, cases)
        for index in range(len(cases)):
            self.assert_same_on_all_ranks(
                [rank[index] for rank in per_rank],
                ("packed_graph", "packed_eager", "probability"),
            )
        nan, inf, lower, nothing = per_rank[0]
        for result, probability in ((nan, 0.0), (inf, 0.0), (nothing, 0.0)):
            self.assertEqual(set(result["probability"].tolist()), {probability})
        numbers = np.where(np.isnan(nan["logits"]), -INF, nan["logits"])
        self.assertEqual(nan["packed_graph"].tolist(), numbers.argmax(axis=1).tolist())
        self.assertEqual(set(nan["dense_eager"].tolist()), {70})
        self.assertEqual(set(inf["packed_graph"].tolist()), {40})
        self.assertEqual(lower["packed_graph"].tolist(), lower["dense_eager"].tolist())
        self.assertEqual(set(nothing["packed_graph"].tolist()), {0})
        self.assertEqual(set(nothing["dense_eager"].tolist()), {130})

    def test_replays_of_other_sizes(self):
        """Red if a padding row reaches a real one, or a result leaves its buffer."""
        batches = [8, 3, 1, 8, 5]
        for result in run_ranks(dflash_rank_kit.replays, 3, batches, 8, 1003):
            self.assertTrue(result["kept"])
            for bs, turn in zip(batches, result["rounds"], strict=True):
                self.assertEqual(len(turn["graph"]), bs * DRAFTED)
                self.assertEqual(turn["graph"].tolist(), turn["eager"].tolist())

    def test_a_changed_head_is_an_error(self):
        """Red if a draft goes on with a head that nobody checked."""
        for said in run_ranks(dflash_rank_kit.changed_head, 2):
            self.assertIn("--speculative-vocab-parallel-draft off", said)


if __name__ == "__main__":
    unittest.main()
