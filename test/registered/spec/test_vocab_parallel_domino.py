"""Domino chains over gloo ranks: the packed exchange against SGLang's dense ones."""

import ast
import inspect
import unittest

import numpy as np

from sglang.srt.speculative import dflash_worker_v2
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import domino_rank_kit
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=40, suite="base-a-test-cpu")

VOCAB = 1003
STEPS = domino_rank_kit.BLOCK - 1


def case(bs, pool, dtype="float32", whole=False, seed=1, **changed):
    return dict(
        vocab=VOCAB, bs=bs, pool=pool, dtype=dtype, whole=whole, seed=seed, **changed
    )


CASES = [
    case(2, 32),
    case(7, 33, seed=2),
    case(5, 400, "bfloat16", seed=3),
    # Equal base logits everywhere, also at the edge of the pool.
    case(6, 16, whole=True, seed=4),
    case(3, 48, "bfloat16", whole=True, seed=5),
    # A pool wider than a shard, which then sends all its columns.
    case(4, 900, seed=6),
    case(3, 32, seed=7, shift=False),
    case(4, 32, seed=8, block=2),
]


class TestDominoChains(CustomTestCase):
    def test_packed_chains_are_the_dense_ones(self):
        """Red if a candidate, its base logit or an id of a chain is another one."""
        for world_size in (2, 3, 4):
            per_rank = run_ranks(domino_rank_kit.chains, world_size, CASES)
            for index, one in enumerate(CASES):
                with self.subTest(world_size=world_size, **one):
                    self.check(one, [rank[index] for rank in per_rank])

    def check(self, one, results):
        result = results[0]
        for name in ("packed", "packed_graph"):
            for other in results:
                self.assertEqual(
                    other[name].tolist(), result["dense_pool"].tolist(), name
                )
        if one["dtype"] == "float32" and not one["whole"]:
            # No equal scores at the edge of the pool: all exchanges pick one pool.
            for name in ("dense_gather", "alone"):
                self.assertEqual(result["packed"].tolist(), result[name].tolist(), name)
        logits = result["first_logits"].astype(np.float64)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        probability = weights.max(axis=1) / weights.sum(axis=1)
        np.testing.assert_allclose(
            result["first_probability"], probability, atol=2e-5, rtol=0
        )

    def test_chains_differ_between_rows_and_steps(self):
        """Red if the chains above repeat one token, which any id would continue."""
        drafted = run_ranks(domino_rank_kit.chains, 2, [case(7, 33, seed=2)])
        drafted = drafted[0][0]["packed"]
        self.assertGreater(len(set(drafted.flatten().tolist())), drafted.size // 2)

    def test_exchanges_of_a_block(self):
        """Red if a block takes another gather, or sends other words."""
        world_size, bs, pool = 2, 8, 32
        counts = run_ranks(domino_rank_kit.chains, world_size, [case(bs, pool)])
        counts = counts[0][0]["counts"]
        reduced = (1, (STEPS - 1) * bs * pool * 4)
        words = -(-(3 + 2 * pool) // 4) * 4
        packed = {
            "all_gather": (1, world_size * bs * words * 4),
            "all_reduce": reduced,
        }
        pooled = {
            "all_gather": (4, world_size * bs * (1 + pool) * (4 + 8)),
            "all_reduce": reduced,
        }
        columns = 512
        gathered = {"all_gather": (1, world_size * columns * STEPS * bs * 4)}
        self.assertEqual(
            counts,
            {
                "packed": packed,
                "packed_graph": packed,
                "dense_pool": pooled,
                "dense_gather": gathered,
            },
        )

    def test_replays_of_other_sizes(self):
        """Red if the worker's sampler drafts densely, or a padding row reaches a real
        one."""
        batches = [6, 2, 1, 6, 3]
        for result in run_ranks(domino_rank_kit.replays, 3, batches, 6, VOCAB):
            self.assertTrue(result["kept"])
            for turn in result["rounds"]:
                self.assertEqual(turn["graph"].tolist(), turn["dense"].tolist())
                self.assertEqual(turn["exchanges"]["all_gather"][0], 1)

    def test_the_worker_passes_its_exchange_on(self):
        """Red if a rollout of the worker, in a graph or eager, loses the keyword."""
        tree = ast.parse(inspect.getsource(dflash_worker_v2))
        calls = [
            {keyword.arg for keyword in node.keywords}
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) == "domino_greedy_rollout"
        ]
        self.assertEqual(len(calls), 2)
        self.assertTrue(all("packed" in names for names in calls))


if __name__ == "__main__":
    unittest.main()
