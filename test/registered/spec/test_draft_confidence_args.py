"""The draft-confidence arguments: what is refused, and what turns collection on."""

import json
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

from sglang.srt.arg_groups.draft_confidence_hook import handle_draft_confidence
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


def arguments(**changed) -> SimpleNamespace:
    """Arguments that the hook reads; the defaults are those of a plain chain."""
    values = dict(
        speculative_algorithm="EAGLE",
        speculative_num_steps=3,
        speculative_adaptive=False,
        speculative_adaptive_config=None,
        speculative_adaptive_policy="accept-length",
        speculative_draft_confidence=False,
        speculative_draft_confidence_temperatures=None,
    )
    return SimpleNamespace(**{**values, **changed})


CONFIDENCE_POLICY = dict(
    speculative_adaptive=True, speculative_adaptive_policy="confidence"
)


class TestDraftConfidenceArguments(CustomTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, name: str, content: dict) -> str:
        path = self.folder / name
        path.write_text(json.dumps(content))
        return str(path)

    def temperatures(self, count: int) -> str:
        return self.write("temperatures.json", {"temperatures": [1.5] * count})

    def assert_refused(self, parts, **changed) -> None:
        with self.assertRaises(ValueError) as caught:
            handle_draft_confidence(arguments(**changed))
        for part in parts:
            self.assertIn(part, str(caught.exception))

    def test_combinations_without_a_meaning(self):
        """Red when one is taken in silence, or the message lacks flag or remedy."""
        path = self.temperatures(3)
        policy, collect = (
            "--speculative-adaptive-policy",
            "--speculative-draft-confidence",
        )
        file_flag = "--speculative-draft-confidence-temperatures"
        for parts, changed in (
            (
                (policy, "add --speculative-adaptive"),
                dict(CONFIDENCE_POLICY, speculative_adaptive=False),
            ),
            (
                (collect, "set --speculative-algorithm"),
                dict(speculative_draft_confidence=True, speculative_algorithm=None),
            ),
            (
                (file_flag, f"add {collect}"),
                dict(speculative_draft_confidence_temperatures=path),
            ),
            (
                (file_flag, "not DSPARK"),
                dict(
                    speculative_draft_confidence=True,
                    speculative_algorithm="DSPARK",
                    speculative_draft_confidence_temperatures=path,
                ),
            ),
        ):
            with self.subTest(parts=parts):
                self.assert_refused(parts, **changed)

    def test_the_policy_turns_collection_on(self):
        """Red when the policy would choose by probabilities that nobody collects."""
        server_args = arguments(**CONFIDENCE_POLICY)
        handle_draft_confidence(server_args)
        self.assertTrue(resolving_view(server_args).speculative_draft_confidence)

    def test_adaptive_steps_that_were_turned_off(self):
        """Red when the fallback to static steps, which warns, becomes an error, or
        collects for nobody."""
        server_args = arguments(**CONFIDENCE_POLICY)
        server_args._resolved_overrides = [("test", {"speculative_adaptive": False})]
        handle_draft_confidence(server_args)
        self.assertFalse(resolving_view(server_args).speculative_draft_confidence)

    def test_temperatures_for_the_longest_chain(self):
        """Red when a file of another number of positions is taken."""
        config = self.write("adaptive.json", {"1": {"candidate_steps": [1, 2, 5]}})
        adaptive = dict(
            speculative_draft_confidence=True,
            speculative_adaptive=True,
            speculative_adaptive_config=config,
        )
        plain = dict(speculative_draft_confidence=True)
        for changed, fits in ((plain, 3), (adaptive, 5)):
            for count in (fits, fits + 1):
                changed["speculative_draft_confidence_temperatures"] = (
                    self.temperatures(count)
                )
                with self.subTest(fits=fits, count=count):
                    if count == fits:
                        handle_draft_confidence(arguments(**changed))
                    else:
                        self.assert_refused((f"drafts up to {fits}",), **changed)

    def test_temperatures_for_every_chain(self):
        """Red when an algorithm whose chains are collected cannot be calibrated; NEXTN
        is EAGLE by now."""
        options = dict(
            speculative_draft_confidence=True,
            speculative_draft_confidence_temperatures=self.temperatures(3),
        )
        for algorithm in ("EAGLE", "EAGLE3", "STANDALONE"):
            with self.subTest(algorithm=algorithm):
                handle_draft_confidence(
                    arguments(speculative_algorithm=algorithm, **options)
                )
        self.assert_refused(("not NGRAM",), speculative_algorithm="NGRAM", **options)

    def test_thresholds_that_are_no_probability(self):
        """Red when a threshold of 0 or 1 goes through: it would pin the steps."""
        for threshold in (0, 1, 1.5, -0.1, "0.5", True, None):
            entry = {"candidate_steps": [1, 3], "confidence_threshold": threshold}
            config = self.write("adaptive.json", {"4": entry})
            with self.subTest(threshold=threshold):
                self.assert_refused(
                    ("--speculative-adaptive-config", "BS 4", repr(threshold)),
                    **CONFIDENCE_POLICY,
                    speculative_adaptive_config=config,
                )


if __name__ == "__main__":
    unittest.main()
