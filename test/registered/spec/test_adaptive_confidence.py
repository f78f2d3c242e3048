"""The confidence policy of adaptive steps."""

import json
import random
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

import torch

from sglang.srt.speculative.adaptive_confidence import (
    ConfidencePolicy,
    Estimator,
    choose_steps,
)
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

CANDIDATES = [1, 2, 3, 5]
EASY, HARD = 0.95, 0.2


class TestChoice(CustomTestCase):
    def test_the_largest_that_survives(self):
        """Red when a smaller one is taken, a candidate's last token is not the one that
        counts, or no step at all is not allowed."""
        survival = [0.9, 0.7, 0.5, 0.4, 0.3]
        for threshold, candidates, steps in (
            (0.3, CANDIDATES, 5),
            (0.31, CANDIDATES, 3),
            (0.6, CANDIDATES, 2),
            (0.95, CANDIDATES, 1),
            (0.95, [0, 1, 3], 0),
            (0.5, [0, 1, 3], 3),
        ):
            with self.subTest(threshold=threshold, candidates=candidates):
                self.assertEqual(choose_steps(candidates, survival, threshold), steps)


class TestEstimator(CustomTestCase):
    def test_the_next_seed_is_the_latest_fact(self):
        """Red when position 0 of the next chain is taken from chains of the past."""
        estimator = Estimator(2)
        estimator.observe([[0.9, 0.9]], [2], [0.1])
        self.assertLess(estimator.survival()[0], 0.12)
        estimator.observe([[0.1, 0.9]], [2], [0.9])
        self.assertGreater(estimator.survival()[0], 0.8)

    def test_the_mean_of_a_batch(self):
        """Red when one request decides for all."""
        estimator = Estimator(1)
        estimator.observe([[1.0]] * 4, [1] * 4, [1.0, 1.0, 0.0, 0.0])
        self.assertAlmostEqual(estimator.survival()[0], 0.5)

    def test_unobserved_positions_follow_the_deepest_observed(self):
        """Red when a deeper candidate is never tried, or taken for certain."""
        estimator = Estimator(4)
        estimator.observe([[0.9, 0.8]], [2], [])
        survival = estimator.survival()
        second = survival[1] / survival[0]
        self.assertAlmostEqual(survival[2] / survival[1], second)
        self.assertAlmostEqual(survival[3] / survival[2], second)

    def test_what_was_deep_once_is_forgotten(self):
        """Red when a chain that was cut stays cut: the old estimate of a position that
        is no longer drafted would hold for ever."""
        estimator = Estimator(3)
        estimator.observe([[HARD] * 3], [0], [HARD])
        for _ in range(6):
            estimator.observe([[EASY]], [1], [EASY])
        self.assertGreater(estimator.survival()[2], 0.7)

    def test_drafts_that_are_sure_and_wrong(self):
        """Red when rounds that contradict the probabilities are not heard."""
        estimator = Estimator(1)
        for _ in range(30):
            estimator.observe([[0.95]], [0], [0.95])
        self.assertLess(estimator.survival()[0], 0.1)

    def test_behind_a_rejected_token_nothing_is_learned(self):
        """Red when the tokens after a rejected one count as rejected, too."""
        estimator = Estimator(2)
        for _ in range(30):
            # Half of the rows are rejected at once; the others hold to the end.
            estimator.observe([[0.5, 0.9], [0.5, 0.9]], [0, 2], [0.5, 0.5])
        survival = estimator.survival()
        self.assertAlmostEqual(survival[0], 0.5, places=2)
        self.assertGreater(survival[1] / survival[0], 0.9)

    def test_nothing_observed(self):
        """Red when a decision is made of nothing."""
        self.assertIsNone(Estimator(3).survival())


def result(chain, seeds) -> SimpleNamespace:
    """What the policy reads of a worker's result."""

    def tensor(rows):
        return None if rows is None else torch.tensor(rows, dtype=torch.float32)

    return SimpleNamespace(
        draft_probability=tensor(chain), next_draft_probability=tensor(seeds)
    )


class PolicyCase(CustomTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def config(self, entries: dict) -> str:
        path = self.folder / "adaptive.json"
        path.write_text(json.dumps(entries))
        return str(path)

    def policy(self, initial=3, candidates=CANDIDATES, temperatures=None, **keys):
        entries = {"1": {"candidate_steps": candidates, **keys}}
        return ConfidencePolicy(initial, self.config(entries), temperatures)

    def round(self, policy, probability, correct=None, rows=1) -> int:
        """One round of a prompt whose drafts have this probability and are right as
        often; the steps that follow."""
        steps = policy.get_steps_for_batch(rows)
        if correct is None:
            correct = steps if probability > 0.5 else 0
        chain = [[probability] * steps] * rows if steps else None
        policy.observe(result(chain, [[probability]] * rows))
        policy.on_verify_complete([min(correct, steps)] * rows, rows)
        return policy.get_steps_for_batch(rows)


class TestPolicy(PolicyCase):
    def test_a_change_of_prompt_shows_at_once(self):
        """Red when the policy warms up: a hard prompt is cut after one round, an easy one
        gets longer chains from the first round on, where accept lengths wait for their
        tenth batch and go one candidate at a time."""
        policy = self.policy(initial=3)
        config = self.config({"1": {"candidate_steps": CANDIDATES}})
        stock = AdaptiveSpeculativeParams(3, config)
        chosen = {}
        for prompt, probability, correct in (
            ("easy", EASY, 5),
            ("hard", HARD, 0),
            ("easy again", EASY, 5),
        ):
            chosen[prompt] = [
                self.round(policy, probability, correct) for _ in range(6)
            ]
        for correct in [5] * 6 + [0] * 4:
            stock.on_verify_complete([correct], 1)
            self.assertEqual(stock.get_steps_for_batch(1), 3)
        self.assertEqual(chosen["easy"], [5] * 6)
        self.assertEqual(chosen["hard"], [1] * 6)
        self.assertEqual(chosen["easy again"], sorted(chosen["easy again"]))
        self.assertEqual((chosen["easy again"][0], chosen["easy again"][-1]), (2, 5))

    def test_a_switch_is_announced_once(self):
        """Red when the controller is told to switch to the steps that it has, or not
        told."""
        policy = self.policy(initial=3)
        announced = []
        for probability in (EASY, EASY, HARD, HARD):
            steps = policy.get_steps_for_batch(1)
            policy.observe(result([[probability] * steps], [[probability]]))
            correct = steps if probability == EASY else 0
            announced.append(policy.on_verify_complete([correct], 1))
        self.assertEqual(announced, [5, None, 1, None])

    def test_no_steps_are_probed(self):
        """Red when a server that stopped drafting never drafts again, or drafts in
        every round what nobody believes."""
        policy = self.policy(1, [0, 1, 3], update_interval=4, confidence_threshold=0.5)
        steps = [self.round(policy, 0.05) for _ in range(12)]
        self.assertEqual(steps, [0, 0, 0, 1] * 3)

    def test_a_probe_waits_for_its_batch_size(self):
        """Red when batches of two sizes in turn, each of which stopped drafting, are
        never tried again: the other's decision came in between."""
        entry = {"candidate_steps": [0, 1], "update_interval": 4}
        entries = {"1": entry, "4": entry, "confidence_threshold": 0.5}
        policy = ConfidencePolicy(1, self.config(entries))
        drafted = {1: [], 4: []}
        for _ in range(15):
            for rows in (1, 4):
                steps = policy.get_steps_for_batch(rows)
                drafted[rows].append(steps)
                chain = [[0.05] * steps] * rows if steps else None
                policy.observe(result(chain, [[0.05]] * rows))
                policy.on_verify_complete([0] * rows, rows)
        for steps in drafted.values():
            self.assertEqual(steps[-10:].count(1), 2)

    def test_nothing_known_at_no_steps(self):
        """Red when a server that starts without steps and leaves the draft out then
        (SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND) never drafts."""
        policy = self.policy(0, [0, 1, 3], update_interval=4)
        steps = []
        for _ in range(5):
            steps.append(policy.get_steps_for_batch(1))
            policy.observe(result(None, None))
            policy.on_verify_complete([0], 1)
        self.assertEqual(steps, [0, 0, 0, 0, 1])
        self.assertEqual(policy.on_verify_complete([], 0), None)

    def test_no_steps_are_left_when_the_seed_is_sure(self):
        """Red when the seed, which is drafted at zero steps as well, is not read."""
        policy = self.policy(1, [0, 1, 3], confidence_threshold=0.5)
        self.assertEqual(self.round(policy, 0.05), 0)
        self.assertGreater(self.round(policy, 0.99), 0)

    def test_a_batch_of_another_size(self):
        """Red when a batch that grew keeps the steps of its old entry's last decision."""
        config = self.config(
            {"1": {"candidate_steps": [1, 3]}, "4": {"candidate_steps": [1, 2]}}
        )
        policy = ConfidencePolicy(1, config)
        self.assertEqual(policy.get_steps_for_batch(4), 1)
        self.round(policy, EASY)
        self.assertEqual(policy.get_steps_for_batch(1), 3)
        self.assertEqual(policy.get_steps_for_batch(4), 2)

    def test_temperatures(self):
        """Red when the temperatures are not applied, or to the seed only."""
        hot = torch.full((5,), 50.0)
        # Believed as it is: 0.95 ** 5; scaled it is close to 0.5 a position.
        self.assertEqual(self.round(self.policy(), EASY, 5), 5)
        policy = self.policy(temperatures=hot, confidence_threshold=0.6)
        self.assertEqual(self.round(policy, EASY, 5), 1)

    def test_finished_requests_say_nothing(self):
        """Red when the extra verify of a request that has finished, which overlap
        scheduling brings, counts among those that go on, or decides by itself."""
        policy = self.policy(initial=3)
        both = result([[EASY] * 3, [HARD] * 3], [[EASY], [HARD]])
        policy.observe(both, rows=[1])
        self.assertEqual(policy.on_verify_complete([3, 0], 2), 1)
        policy.observe(both, rows=[])
        self.assertIsNone(policy.on_verify_complete([3, 0], 2))

    def test_an_idle_batch(self):
        """Red when a round without requests decides, or is taken into the next one."""
        policy = self.policy(initial=3)
        policy.observe(result(None, None))
        self.assertIsNone(policy.on_verify_complete([], 0))
        self.assertEqual(policy.get_steps_for_batch(1), 3)
        self.assertEqual(self.round(policy, HARD, 0), 1)

    def test_prompts_in_turn(self):
        """Red when the policy saves nothing, or costs more than it saves: on easy and hard
        prompts in turn it verifies at least a fifth less than accept lengths do for the
        same tokens, also with drafts that are surer than they should be. The time falls,
        too, where a draft and its verification take a tenth of a round."""
        keys = {"candidate_steps": [1, 3, 5]}
        stock = AdaptiveSpeculativeParams(3, self.config({"1": keys}))
        policy = ConfidencePolicy(3, self.config({"1": keys}))
        surer = ConfidencePolicy(3, self.config({"1": keys}))
        (stock_rounds, stock_verified), (rounds, verified) = map(
            simulated, (stock, policy)
        )
        self.assertLess(verified, 0.8 * stock_verified)
        self.assertLess(simulated(surer, power=0.3)[1], 0.8 * stock_verified)
        self.assertLess(
            0.9 * rounds + 0.1 * verified, 0.9 * stock_rounds + 0.1 * stock_verified
        )


def simulated(policy, power: float = 1.0, prompts: int = 40, tokens: int = 48):
    """Rounds and verified tokens of prompts one after the other, easy and hard in turn.
    A draft is right with a probability of its own, and claims that to the ``power``."""
    random_source, rounds, verified = random.Random(5), 0, 0

    def draw(mean):
        return random_source.betavariate(8 * mean, 8 * (1 - mean))

    for prompt in range(prompts):
        mean, left = (0.93, 0.35)[prompt % 2], tokens
        seed = draw(mean)
        while left > 0:
            steps = policy.get_steps_for_batch(1)
            chain = [seed] + [draw(mean) for _ in range(steps - 1)]
            right = [random_source.random() < chance for chance in chain]
            correct = (right + [False]).index(False)
            seed = draw(mean)
            if isinstance(policy, ConfidencePolicy):
                claimed = [chance**power for chance in chain]
                policy.observe(result([claimed], [[seed**power]]))
            policy.on_verify_complete([correct], 1)
            rounds, verified = rounds + 1, verified + steps + 1
            left -= correct + 1
    return rounds, verified


if __name__ == "__main__":
    unittest.main()
