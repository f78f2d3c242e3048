"""Where DSpark's confidence comes from: headless checkpoints, and what is refused."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.arg_groups.speculative_hook import handle_speculative_decoding
from sglang.srt.models import deepseek_v4_dspark as v4
from sglang.srt.models.dspark import DSparkConfidenceHead, DSparkDraftMixin
from sglang.srt.models.dspark_minimax import DSparkMiniMaxDraftModel
from sglang.srt.speculative.dspark_components import dspark_draft_sampler
from sglang.srt.speculative.dspark_components.dspark_planner import DSparkVerifyPlanner
from sglang.srt.speculative.dspark_confidence_source import FLAG, check_arguments
from sglang.srt.speculative.dspark_draft_probability import DraftProbability
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits.dspark_draft_kit import GAMMA, HIDDEN, RANK, environment
from sglang.test.kits.dspark_verify_kit import planner_context
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

HEAD, DRAFT = "head", "draft-probability"
HEADS_LOGGER = "sglang.srt.speculative.dspark_confidence_source"
VOCAB = 64


def config(**changed):
    values = dict(
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        markov_rank=RANK,
        markov_head_type="vanilla",
        num_hidden_layers=1,
        block_size=GAMMA,
        dflash_config={"target_layer_ids": [1]},
    )
    return SimpleNamespace(**(values | changed))


class Backbone(torch.nn.Module):
    """What a draft model is besides its DSpark parts."""

    is_nemotron_35_draft = False

    def __init__(self, config, quant_config=None, prefix=""):
        super().__init__()
        self.block_size = GAMMA

    def load_weights(self, weights):
        self.backbone_weights = [name for name, _ in weights]


class Draft(DSparkDraftMixin, Backbone):
    pass


class Source(CustomTestCase):
    """A draft model under a ragged-verify mode and a confidence source."""

    def setUp(self):
        self.use(HEAD, "compact")

    def use(self, source, mode="compact"):
        spec = SimpleNamespace(speculative_dspark_confidence_source=source)
        for context in (
            patch("sglang.srt.runtime_context.get_spec", lambda: spec),
            environment(SGLANG_RAGGED_VERIFY_MODE=mode),
        ):
            context.__enter__()
            self.addCleanup(context.__exit__, None, None, None)

    def checkpoint(self, with_head):
        names = {"markov_head.markov_w1.weight": (VOCAB, RANK)}
        names["markov_head.markov_w2.weight"] = (VOCAB, RANK)
        if with_head:
            names["confidence_head.proj.weight"] = (1, HIDDEN + RANK)
            names["confidence_head.proj.bias"] = (1,)
        return [(name, torch.ones(shape)) for name, shape in names.items()]

    def planner(self, draft_model):
        runner = SimpleNamespace(req_to_token_pool=None, decode_cuda_graph_runner=None)
        with planner_context(overlap=False):
            return DSparkVerifyPlanner(
                draft_model=draft_model,
                gamma=GAMMA,
                model_runner=runner,
                device="cpu",
                tp_rank=0,
                verify_num_draft_tokens=GAMMA + 1,
                tp_sync=None,
            )


class TestHeadlessCheckpoints(Source):
    def test_a_checkpoint_without_a_head(self):
        """Red if draft-probability asks a checkpoint for a head, in the model, while its
        weights load, or in the planner of a ragged mode; or if stock's refusal stops
        naming what runs."""
        for mode in ("compact", "cap-accept"):
            self.use(HEAD, mode)
            model = Draft(config())
            with self.assertLogs(HEADS_LOGGER, "ERROR") as logged:
                with self.assertRaisesRegex(ValueError, "checkpoint is missing"):
                    model.load_weights(self.checkpoint(with_head=False))
            self.assertIn(f"{FLAG} {DRAFT}", logged.output[0])
            self.use(DRAFT, mode)
            model = Draft(config())
            model.load_weights(self.checkpoint(with_head=False))
            planner = self.planner(model)
            self.assertTrue(planner.carries_confidence)
            self.assertTrue(planner.schedules_verify_budget)
            self.assertTrue(bool(model.markov_head.markov_w2.weight.eq(1).all()))

    def test_the_planners_refusal(self):
        """Red if it stops refusing, or names no way on."""
        with self.assertLogs(HEADS_LOGGER, "ERROR") as logged:
            with self.assertRaisesRegex(ValueError, "no confidence head"):
                self.planner(SimpleNamespace(confidence_head=None))
        self.assertIn(f"{FLAG} {DRAFT}", logged.output[0])

    def test_a_head_that_is_not_used(self):
        """Red if the weights of a trained head are an error, at start or at an update
        of the weights, or become part of the draft."""
        self.use(DRAFT)
        model = Draft(config())
        for _ in range(2):
            model.load_weights(self.checkpoint(with_head=True))
        self.assertIsInstance(model.confidence_head, DraftProbability)
        self.assertEqual(model.backbone_weights, [])
        names = {name for name, _ in model.named_parameters()}
        self.assertFalse({name for name in names if "confidence" in name})
        prefix = "language_model.model.dspark."
        weights = [(prefix + name, value) for name, value in self.checkpoint(True)]
        loaded = DSparkMiniMaxDraftModel.load_weights(model, weights)
        self.assertEqual(loaded, names)

    def test_the_source_is_built(self):
        """Red if a builder takes the other source, or computes in static mode."""

        def build_v4():
            return v4.build_dspark_v4_confidence_head(config=config(), markov_rank=RANK)

        for build in (lambda: Draft(config()).confidence_head, build_v4):
            self.use(HEAD)
            self.assertIsInstance(build(), DSparkConfidenceHead)
            self.use(DRAFT)
            self.assertIsInstance(build(), DraftProbability)
            self.use(DRAFT, "static")
            self.assertIsNone(build())

    def test_deepseek_v4_weights(self):
        """Red if the head's weights are asked for, or looked up, where none is used."""
        remap = v4.DeepseekV4ForCausalLMDSpark._remap_dspark_weight_name
        name = "mtp.0.confidence_head.proj.weight"
        draft = SimpleNamespace(confidence_head=DraftProbability(greedy_draft=True))
        self.assertIsNone(remap(draft, name))
        trained = DSparkConfidenceHead(hidden_size=HIDDEN, markov_rank=RANK)
        draft = SimpleNamespace(confidence_head=trained)
        self.assertEqual(remap(draft, name), "confidence_head.proj.weight")
        check = v4.DeepseekV4ForCausalLMDSpark._assert_confidence_head_loaded
        with self.assertLogs(HEADS_LOGGER, "ERROR"):
            with self.assertRaisesRegex(ValueError, "checkpoint is missing"):
                check(
                    draft,
                    params_dict={"confidence_head.proj.weight": None},
                    loaded_params=set(),
                )


class TestRefusals(Source):
    def test_another_algorithm(self):
        """Red if the flag is ignored where there is no DSpark."""
        for algorithm in ("EAGLE", "DFLASH", None):
            arguments = SimpleNamespace(
                speculative_draft_model_path=None,
                speculative_draft_model_revision=None,
                speculative_algorithm=algorithm,
                speculative_dspark_confidence_source=DRAFT,
                decrypted_draft_config_file=None,
                trust_remote_code=False,
                disaggregation_mode="null",
                disaggregation_decode_enable_radix_cache=False,
                speculative_moe_runner_backend="auto",
                moe_runner_backend="auto",
            )
            with self.assertRaises(ValueError) as caught:
                handle_speculative_decoding(arguments)
            message = str(caught.exception)
            self.assertIn(f"{FLAG} {DRAFT}", message)
            self.assertIn(f"--speculative-algorithm is {algorithm}", message)

    def test_a_mode_without_confidence(self):
        """Red if the flag does nothing in silence, or warns where it works."""
        arguments = SimpleNamespace(speculative_algorithm="DSPARK")
        with self.assertLogs(HEADS_LOGGER, "WARNING") as logged:
            with environment(SGLANG_RAGGED_VERIFY_MODE="static"):
                check_arguments(arguments)
        self.assertIn(FLAG, logged.output[0])
        with self.assertNoLogs(HEADS_LOGGER, "WARNING"):
            check_arguments(arguments)

    def test_a_megakernel(self):
        """Red if a draft whose steps leave no logits starts, or is refused with the
        head, whose confidence a megakernel's features give."""
        markov_head = SimpleNamespace(draft_probability=None)
        model = SimpleNamespace(markov_head=markov_head, confidence_head=None)
        built = "built"
        with (
            patch.object(
                dspark_draft_sampler, "megakernel_draft_sampler", lambda _: object()
            ),
            patch.object(dspark_draft_sampler, "DsparkDraftSampler", lambda **_: built),
        ):
            self.assertEqual(self.build(model), built)
            markov_head.draft_probability = DraftProbability(greedy_draft=True)
            with self.assertRaisesRegex(ValueError, "--enable-nvidia-megakernel"):
                self.build(model)

    def build(self, model):
        return dspark_draft_sampler.maybe_build_draft_sampler(
            draft_model=model,
            gamma=GAMMA,
            max_bs=1,
            device="cpu",
            tp_rank=0,
            noise=None,
            greedy_draft=True,
            tp_sync=None,
        )


if __name__ == "__main__":
    unittest.main()
