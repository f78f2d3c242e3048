"""DSpark's confidence from both sources, and what the verify planner decides by it."""

import unittest

import numpy as np

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import dspark_confidence_rank_kit as kit
from sglang.test.kits.dspark_draft_kit import GAMMA
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=45, suite="base-a-test-cpu")

HEAD, DRAFT = "head", "draft-probability"
KINDS = ("vanilla", "gated", "rnn", "v4", "vanilla_sharded", "v4_sharded")
CALIBRATION = [0.5, 1.0, 1.5, 2.0, 4.0, 0.25]
PROPOSALS = ("eager", "folded")


def case(kind="vanilla", source=DRAFT, bs=5, **changed):
    return dict(kind=kind, source=source, bs=bs, **changed)


def bits(values):
    return np.ascontiguousarray(values).view(np.int32).tolist()


class TestDSparkConfidence(CustomTestCase):
    def run_cases(self, cases, world_size=2):
        """Results of rank 0; the other ranks have the same bits."""
        ranks = run_ranks(kit.confidences, world_size, cases)
        for rank in ranks[1:]:
            for one, mine, other in zip(cases, ranks[0], rank, strict=True):
                for way in ways(mine):
                    with self.subTest(world_size=world_size, way=way, **one):
                        self.assert_same_steps(mine[way], other[way])
        return ranks[0]

    def assert_same_steps(self, first, second):
        for one, other in zip(first, second, strict=True):
            self.assertEqual(one["tokens"].tolist(), other["tokens"].tolist())
            for name in ("confidence", "raw"):
                self.assertEqual(bits(one[name]), bits(other[name]), name)
            self.assertEqual(one["decisions"], other["decisions"])

    def test_packed_decides_as_dense(self):
        """Red if a confidence, its raw logit, a budget or a verify length depends on the
        path, on the rank, or on whether a graph folds the draft, with either source."""
        cases = [
            *(case(kind, HEAD, seed=20 + i) for i, kind in enumerate(KINDS)),
            *(case(kind, DRAFT, seed=40 + i) for i, kind in enumerate(KINDS)),
            case("rnn", DRAFT, dtype="bfloat16", seed=60),
            case("vanilla", HEAD, dtype="bfloat16", mode="cap-accept", seed=61),
            case("vanilla", DRAFT, calibration=CALIBRATION, seed=62),
            # One row: the dense vanilla step is another unit of SGLang's.
            case("vanilla", DRAFT, bs=1, seed=63),
        ]
        for world_size in (2, 3):
            for one, result in zip(cases, self.run_cases(cases, world_size)):
                with self.subTest(world_size=world_size, **one):
                    for way in ways(result):
                        self.assert_same_steps(result["dense", "eager"], result[way])

    def test_decisions_follow_the_confidence(self):
        """Red if the budget is all tokens or none whatever was drafted, or the relayed
        confidence never reaches the planner."""
        cases = [
            case(source=source, bs=6, rounds=8, seed=3) for source in (HEAD, DRAFT)
        ]
        for result in self.run_cases(cases):
            steps = result["packed", "folded"]
            budgets, lengths, relayed, _ = zip(*(step["decisions"] for step in steps))
            every = 6 * GAMMA
            self.assertTrue(any(0 < budget < every for budget in budgets), budgets)
            self.assertGreater(len(set(budgets)), 2)
            self.assertTrue(any(len(set(row)) > 1 for row in lengths))
            # What a planner without overlap decides comes a step later with it.
            self.assertIsNone(relayed[0])
            self.assertGreater(len(set(relayed)), 2)

    def test_probability_of_sampled_drafts(self):
        """Red if a sampled token is scored in another distribution than the one it was
        sampled from, or one that was picked as the largest is scored at a temperature.
        """
        temperatures = [0.0, 0.5, 1.0, 1.7, 0.0]
        cases = [
            case(kind, temperatures=temperatures, seed=70 + i)
            for i, kind in enumerate(("vanilla", "rnn", "v4_sharded"))
        ]
        scale = np.where(np.array(temperatures) == 0, 1.0, temperatures)
        for result in self.run_cases(cases):
            drafted_below_the_top = 0
            for proposal in PROPOSALS:
                for step in result["dense", proposal]:
                    logits = step["logits"].astype(np.float64) / scale[:, None, None]
                    logits -= logits.max(axis=2, keepdims=True)
                    softmax = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
                    tokens = step["tokens"][:, :, None]
                    expected = np.take_along_axis(softmax, tokens, axis=2)[:, :, 0]
                    np.testing.assert_allclose(
                        step["confidence"], expected, atol=2e-5, rtol=0
                    )
                    below = step["tokens"] != logits.argmax(axis=2)
                    self.assertFalse(below[[0, 4]].any())
                    drafted_below_the_top += below.sum()
            self.assertGreater(drafted_below_the_top, 0)

    def test_calibration_scales_the_confidence_only(self):
        """Red if the temperatures miss a position, reach the raw logit that they are
        fit on, or a temperature of 1 changes a bit."""
        plain, ones, scaled = (
            case(calibration=calibration, seed=80)
            for calibration in (None, [1.0] * GAMMA, CALIBRATION)
        )
        plain, ones, scaled = self.run_cases([plain, ones, scaled])
        for way in ways(plain):
            self.assert_same_steps(plain[way], ones[way])
            for one, other in zip(plain[way], scaled[way], strict=True):
                self.assertEqual(bits(one["raw"]), bits(other["raw"]))
                raw = one["raw"].astype(np.float64) / np.array(CALIBRATION)
                np.testing.assert_allclose(
                    other["confidence"], 1 / (1 + np.exp(-raw)), atol=2e-6, rtol=0
                )
                # The position whose temperature is 1.
                self.assertEqual(
                    bits(one["confidence"][:, 1]), bits(other["confidence"][:, 1])
                )
            self.assertNotEqual(
                [step["decisions"] for step in plain[way]],
                [step["decisions"] for step in scaled[way]],
            )


def ways(result):
    """Paths and proposals that a result holds, ``(path, proposal)``."""
    return [key for key in result if isinstance(key, tuple)]


if __name__ == "__main__":
    unittest.main()
