"""The draft's probability as DSpark's confidence: what is recorded, and read back."""

import glob
import os
import tempfile
import unittest
from types import SimpleNamespace

import torch

from sglang.benchmark.dspark_sts_fit import fit_sts_temperatures, load_collected_shards
from sglang.srt.models.dspark import DSparkConfidenceHead
from sglang.srt.speculative.dspark_components.dspark_observability import (
    DsparkStepObservers,
)
from sglang.srt.speculative.dspark_confidence_source import FLAG
from sglang.srt.speculative.dspark_draft_probability import (
    DraftProbability,
    build_draft_probability,
    connect_draft_probability,
)
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits.dspark_draft_kit import environment
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


class TestDraftProbability(CustomTestCase):
    def test_steps_that_were_not_recorded(self):
        """Red if a block is given the confidence of another one."""
        tokens = torch.zeros(2, 3, dtype=torch.int64)

        def predict(recorded):
            source = DraftProbability(greedy_draft=True)
            for step, rows in enumerate(recorded):
                source.add(step, torch.full((rows,), 0.5))
            confidence, _ = source.predict(None, draft_tokens=tokens)
            with self.assertRaisesRegex(RuntimeError, FLAG):
                source.predict(None, draft_tokens=tokens)
            return confidence

        self.assertEqual(predict([2, 2, 2]).tolist(), [[0.5] * 3] * 2)
        for recorded in ([2, 2], [4, 4, 4], []):
            with self.assertRaisesRegex(RuntimeError, FLAG):
                predict(recorded)

    def test_connecting(self):
        """Red if the static mode records steps, or a trained head is taken for it."""
        for head in (None, DSparkConfidenceHead(hidden_size=4, markov_rank=2)):
            markov_head = SimpleNamespace(vocab_size=64)
            connect_draft_probability(
                SimpleNamespace(
                    confidence_head=head, markov_head=markov_head, lm_head=None
                )
            )
            self.assertFalse(hasattr(markov_head, "draft_probability"))

    def test_what_can_be_drafted(self):
        """Red if padding, or an id that the draft or the head does not have, enters the
        log-sum-exp, or the temperature of a row reaches another one."""
        logits = torch.randn(4, 80, generator=torch.Generator().manual_seed(1))
        logits[:, 70:] = 1e4
        ids = torch.tensor([0, 31, 33, 69])
        temperatures = torch.tensor([0.0, 1.0, 0.5, 2.0])
        for markov_vocab, head_vocab in ((70, 130), (130, 70)):
            markov_head = SimpleNamespace(vocab_size=markov_vocab)
            head = SimpleNamespace(
                tp_size=3,
                org_vocab_size=head_vocab,
                shard_indices=SimpleNamespace(num_elements_padded=32),
            )
            for greedy, scale in ((True, torch.ones(4)), (False, temperatures)):
                source = DraftProbability(greedy_draft=greedy)
                source.connect(markov_head, head)
                source.add_logits(0, logits, ids, temperatures)
                confidence, _ = source.predict(None, draft_tokens=ids[:, None])
                scale = torch.where(scale == 0, 1.0, scale).double()[:, None]
                softmax = (logits[:, :70].double() / scale).softmax(dim=1)
                with self.subTest(markov_vocab=markov_vocab, greedy=greedy):
                    torch.testing.assert_close(
                        confidence.double(),
                        softmax.gather(1, ids[:, None]),
                        atol=2e-5,
                        rtol=0,
                    )

    def test_how_the_server_drafts(self):
        """Red if a sampled draft is scored as a greedy one, without its temperatures,
        or the other way round."""
        for value, greedy in (("0", False), ("1", True)):
            with environment(SGLANG_DSPARK_USE_GREEDY_DRAFT=value):
                self.assertIs(build_draft_probability().greedy_draft, greedy)

    def test_what_is_collected_for_a_fit(self):
        """Red if a probability of 0 or 1 is collected as an infinity, or SGLang's fit
        cannot read what was collected."""
        rows = 64
        source = DraftProbability(greedy_draft=True)
        generator = torch.Generator().manual_seed(2)
        probability = torch.rand(rows, 3, generator=generator)
        probability[0], probability[1] = 0.0, 1.0
        for step in range(3):
            source.add(step, probability[:, step])
        drafted = torch.zeros(rows, 3, dtype=torch.int64)
        _, raw = source.predict(None, draft_tokens=drafted)
        ids = torch.zeros(rows, 4, dtype=torch.int64)
        logits = torch.rand(rows * 4, 2, generator=generator)
        with tempfile.TemporaryDirectory() as folder:
            stem = os.path.join(folder, "pairs")
            observers = DsparkStepObservers.__new__(DsparkStepObservers)
            observers._sts_collect_path, observers._sts_recorder = stem, None
            observers._gamma, observers._verify_num_draft_tokens = 3, 4
            observers._maybe_record_sts_collect(
                confidence_raw=raw, verify_ids_2d=ids, target_logits=logits, bs=rows
            )
            observers._sts_recorder.flush()
            self.assertEqual(len(glob.glob(f"{stem}*")), 1)
            collected, mask = load_collected_shards(data_glob=f"{stem}*")
        self.assertTrue(collected.isfinite().all())
        torch.testing.assert_close(
            torch.sigmoid(collected), probability, atol=1e-6, rtol=0
        )
        fit = fit_sts_temperatures(
            logits=collected, prefix_mask=mask, grid=torch.tensor([0.5, 1.0, 2.0])
        )
        self.assertEqual(len(fit["temperatures"]), 3)


if __name__ == "__main__":
    unittest.main()
