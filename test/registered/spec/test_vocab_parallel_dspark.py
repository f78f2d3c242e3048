"""DSpark greedy chains over gloo ranks: packed steps against SGLang's dense ones."""

import unittest

import numpy as np

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import dspark_rank_kit
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=60, suite="base-a-test-cpu")

VOCAB = 1003
GAMMA = dspark_rank_kit.GAMMA
NAN = float("nan")
BF16 = dict(head_dtype="bfloat16", dtype="bfloat16")
SHARDED = ("vanilla_sharded", "v4_sharded")
PROBABILITIES = ("dense_probability", "probability", "graph_probability")
EVERY_HEAD = ("vanilla", "nemotron", "gated", "rnn", "v4", *SHARDED)


def case(kind, bs, **changed):
    return dict(kind=kind, bs=bs, **changed)


CASES = [
    *(case(kind, 5, seed=index) for index, kind in enumerate(EVERY_HEAD)),
    *(case(kind, 3, **BF16, seed=10 + i) for i, kind in enumerate(EVERY_HEAD)),
    # One row: the dense vanilla step is another unit of SGLang's.
    *(case(kind, 1, seed=20) for kind in EVERY_HEAD),
    # A step rounds to the wider of the two dtypes.
    case("vanilla", 4, head_dtype="bfloat16", seed=30),
    case("rnn", 2, dtype="bfloat16", head_dtype="bfloat16", seed=31),
    # Equal logits in one shard and in several.
    case("vanilla", 8, whole=True, seed=32),
    case("vanilla", 8, whole=True, **BF16, seed=33),
    case("v4", 8, whole=True, seed=34),
    case("v4_sharded", 8, whole=True, **BF16, seed=35),
    # 64 + 64 + 2 columns over three ranks, and an empty fourth.
    case("vanilla", 4, vocab=130, whole=True, seed=36),
    case("gated", 4, vocab=130, seed=37),
    # SGLang's own sharded step wants the empty shard to start at a multiple of 4.
    case("v4_sharded", 4, vocab=132, whole=True, seed=38),
    # The draft's vocabulary ends before the head's.
    case("vanilla", 4, vocab=130, markov_vocab=70, whole=True, seed=39),
    case("rnn", 4, vocab=1003, markov_vocab=600, seed=40),
]


class TestDSparkChains(CustomTestCase):
    def test_packed_chains_are_the_dense_ones(self):
        """Red if a step feeds another id to the next, rounds otherwise, or biases
        another rank's columns."""
        for world_size in (2, 3, 4):
            per_rank = run_ranks(dspark_rank_kit.blocks, world_size, CASES)
            for index, one in enumerate(CASES):
                with self.subTest(world_size=world_size, **one):
                    self.check([rank[index] for rank in per_rank])

    def check(self, results):
        expected = results[0]["step_logits"].argmax(axis=2)
        for result in results:
            for name in ("dense", "dense_recorded", "packed", "packed_graph"):
                self.assertEqual(result[name].tolist(), expected.tolist(), name)
            for name in PROBABILITIES:
                bits = result[name].view(np.int32)
                self.assertTrue((bits == results[0][name].view(np.int32)).all(), name)
        logits = results[0]["step_logits"].astype(np.float64)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        probability = weights.max(axis=2) / weights.sum(axis=2)
        for name in PROBABILITIES:
            np.testing.assert_allclose(results[0][name], probability, atol=2e-5, rtol=0)

    def test_a_chain_depends_on_its_ids(self):
        """Red if the chains above would be the same whatever a step fed to the next."""
        cases = [case(kind, 8, seed=50) for kind in EVERY_HEAD]
        for one, result in zip(cases, run_ranks(dspark_rank_kit.blocks, 2, cases)[0]):
            with self.subTest(kind=one["kind"]):
                # The base logits alone pick another token at most steps.
                drafted = result["packed"]
                self.assertGreater(len(set(drafted.flatten().tolist())), GAMMA)
                self.assertTrue((drafted[:, 1:] != drafted[:, :-1]).any())

    def test_a_rank_biases_its_own_columns(self):
        """Red if a rank multiplies by the whole second Markov weight, as dense does."""
        cases = [case(kind, 2, vocab=132) for kind in EVERY_HEAD]
        for rank in run_ranks(dspark_rank_kit.blocks, 4, cases):
            for one, result in zip(cases, rank, strict=True):
                # A quantised weight is not sliced.
                whole = one["kind"] == "nemotron"
                columns = 132 if whole else result["shard_columns"]
                self.assertEqual(result["bias_columns"], columns, one["kind"])

    def test_exchanges_of_a_block(self):
        """Red if a step takes a second gather, or the base logits are gathered."""
        bs = 8
        for world_size in (2, 4):
            padded = -(-VOCAB // (64 * world_size)) * 64 * world_size
            cases = [case(kind, bs, **BF16, seed=60) for kind in EVERY_HEAD]
            cases.append(case("rnn", bs, sync="all,-dspark-draft", seed=61))
            results = run_ranks(dspark_rank_kit.blocks, world_size, cases)[0]
            broadcast = (GAMMA, GAMMA * bs * 8)
            words = (GAMMA, GAMMA * world_size * bs * 12)
            for one, result in zip(cases, results, strict=True):
                counts = result["counts"]
                with self.subTest(world_size=world_size, **one):
                    for name in ("packed", "packed_graph"):
                        self.assertEqual(counts[name]["all_gather"], words)
                    item = 4 if one.get("sync") else 2
                    dense = (1, GAMMA * bs * padded * item)
                    if one["kind"] in SHARDED:
                        # SGLang's own sharded step: value and id of every rank.
                        dense = (GAMMA, GAMMA * world_size * bs * 8)
                    self.assertEqual(counts["dense"]["all_gather"], dense)
                    kept = None if one.get("sync") else broadcast
                    for count in counts.values():
                        self.assertEqual(count.get("broadcast"), kept)

    def test_a_nan_never_wins(self):
        """Red if a NaN is drafted where a number is: dense drafts it on the CPU."""
        cases = [
            case(kind, 3, vocab=132, special={70: NAN}, seed=70)
            for kind in ("vanilla", *SHARDED)
        ]
        for world_size in (2, 4):
            for ranks in zip(*run_ranks(dspark_rank_kit.blocks, world_size, cases)):
                for result in ranks:
                    packed = result["packed"]
                    self.assertEqual(packed.tolist(), ranks[0]["packed"].tolist())
                    self.assertEqual(packed.tolist(), result["packed_graph"].tolist())
                    self.assertNotIn(70, packed)
                    self.assertEqual(set(result["dense"].flatten().tolist()), {70})
                    for name in PROBABILITIES:
                        self.assertEqual(set(result[name].flatten()), {0.0})

    def test_replays_of_other_sizes(self):
        """Red if a padding row reaches a real one, or a result leaves its buffer."""
        batches = [6, 2, 1, 6, 3]
        for kind in ("vanilla", "rnn"):
            for result in run_ranks(dspark_rank_kit.replays, 3, batches, 6, kind):
                self.assertTrue(result["kept"])
                for turn in result["rounds"]:
                    self.assertEqual(turn["graph"].tolist(), turn["eager"].tolist())
                    np.testing.assert_allclose(
                        turn["probability"], turn["eager_probability"], atol=2e-5
                    )


if __name__ == "__main__":
    unittest.main()
