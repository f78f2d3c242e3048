"""Probabilities of a chain on their way from the draft's logits to the result."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.layers.dense_logsumexp import (
    DenseLogsumexp,
    VocabShards,
    dense_logsumexp,
)
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.managers.overlap_utils import FutureMap, RelayPayload
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative import eagle_disaggregation, eagle_info
from sglang.srt.speculative.chain_confidence import ChainConfidence, token_probability
from sglang.srt.speculative.chain_confidence_install import OffReason, off_reason
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
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


def draft_input(first: int, rows: int, width: int = 1) -> EagleDraftInput:
    """Rows that can be told apart: row ``i`` holds ``first + i`` everywhere."""
    numbers = torch.arange(first, first + rows)
    probability = (numbers.float() / 64)[:, None].expand(rows, width).clone()
    return EagleDraftInput(
        topk_p=torch.ones(rows, width),
        topk_index=numbers[:, None].expand(rows, width).clone(),
        hidden_states=numbers[:, None].float(),
        bonus_tokens=numbers.int(),
        draft_probability=probability,
    )


class TestCarriers(CustomTestCase):
    def assert_follows(self, carrier: EagleDraftInput) -> None:
        """The probabilities are those of the requests that the tokens belong to."""
        expected = carrier.topk_index.float() / 64
        self.assertTrue(torch.equal(carrier.draft_probability, expected))

    def test_filter_merge_and_pad(self):
        """Red when a request leaves or joins and takes another's probability."""
        for width in (1, 3):
            one, other = draft_input(0, 4, width), draft_input(10, 2, width)
            one.filter_batch(torch.tensor([3, 0]))
            one.merge_batch(other)
            self.assertEqual(one.draft_probability.shape, (4, width))
            self.assert_follows(one)

            def pad(tensor, size):
                return torch.cat([tensor, tensor.new_zeros(size - len(tensor), width)])

            one.pad_batch(pad, 6)
            self.assertEqual(one.draft_probability.shape, (6, width))

    def test_an_idle_batch_takes_the_others(self):
        """Red when the first requests after an idle time lose their probability, or
        an idle batch that joins takes those that are there."""
        spec = SimpleNamespace(speculative_use_rejection_sampling=False)
        with patch.object(eagle_info, "get_spec", lambda: spec):
            idle = EagleDraftInput.create_idle_input(
                "cpu", 1, torch.float32, 1, CaptureHiddenMode.LAST
            )
        one = draft_input(5, 3)
        one.merge_batch(idle)
        self.assert_follows(one)
        idle.merge_batch(one)
        self.assert_follows(idle)

    def test_nothing_is_carried_when_nothing_is_collected(self):
        """Red when an absent field becomes a tensor of garbage."""
        one, other = draft_input(0, 2), draft_input(5, 2)
        one.draft_probability = other.draft_probability = None
        one.merge_batch(other)
        one.filter_batch(torch.tensor([1, 2]))
        self.assertIsNone(one.draft_probability)

    def relay(self) -> FutureMap:
        """The overlap relay of ten requests, without a scheduler around it."""
        self.enterContext(
            patch(
                "sglang.srt.speculative.spec_utils.spec_need_hidden_states",
                lambda: False,
            )
        )
        future_map = FutureMap.__new__(FutureMap)
        future_map.spec_algo = SpeculativeAlgorithm.EAGLE
        future_map.device, future_map.req_pool_size = "cpu", 10
        future_map.output_tokens_buf = torch.zeros(10, dtype=torch.int64)
        future_map.need_topk = future_map.need_hidden_states = False
        future_map.draft_probs_buf = future_map.dsa_topk_indices_buf = None
        future_map.draft_probability_buf = future_map._relay = None
        return future_map

    def test_overlap_relay(self):
        """Red when the relay drops it, or writes or reads another request's slot."""
        future_map = self.relay()
        for indices, sent in (
            (torch.tensor([7, 2, 5]), draft_input(20, 3)),
            (torch.tensor([2]), draft_input(40, 1)),
        ):
            future_map.stash(indices, RelayPayload.from_draft_input(sent))
        received = EagleDraftInput(future_indices=torch.tensor([5, 2, 7]))
        batch = SimpleNamespace(spec_info=received)
        with patch(
            "sglang.srt.managers.overlap_utils.gather_spec_extras",
            lambda at, p, ids, tokens, states: (p[at], ids[at], tokens[at], None),
        ):
            future_map._resolve_spec_extras(batch)
        self.assertEqual(received.topk_index.tolist(), [[22], [40], [20]])
        self.assert_follows(received)

    def test_a_relay_without_it(self):
        """Red when the relay makes a buffer that nothing is collected for."""
        future_map, sent = self.relay(), draft_input(20, 3)
        sent.draft_probability = None
        payload = RelayPayload.from_draft_input(sent)
        future_map.stash(torch.tensor([1, 2, 3]), payload)
        self.assertIsNone(future_map.draft_probability_buf)


class TestDisaggregation(CustomTestCase):
    def received(self, collects: bool, layers: int) -> EagleDraftInput:
        """What a decode server makes of two requests that a prefill server sent."""
        requests = [
            SimpleNamespace(
                output_topk_p=[0.25 + row, 0.5 + row, 9.0],
                output_topk_index=[row, row + 1, 9],
                hidden_states_tensor=torch.zeros(4),
                output_dsa_topk_indices=None,
            )
            for row in range(2)
        ]
        batch = SimpleNamespace(
            reqs=requests,
            device="cpu",
            enable_overlap=False,
            model_config=SimpleNamespace(hf_config=SimpleNamespace()),
        )
        spec = SimpleNamespace(
            speculative_eagle_topk=1,
            enable_multi_layer_eagle=layers > 1,
            speculative_num_steps=layers,
            speculative_use_rejection_sampling=False,
            speculative_draft_confidence=collects,
        )
        with (
            patch.object(eagle_disaggregation, "get_spec", lambda: spec),
            patch.object(
                eagle_disaggregation,
                "async_h2d_stack",
                lambda tensors, device: torch.stack(tensors),
            ),
        ):
            return eagle_disaggregation.build_eagle_disagg_draft_input(
                batch, torch.tensor([1, 2]), None
            )

    def test_the_seed_comes_from_what_was_sent(self):
        """Red when a decode server starts without the probability of its first chain, or
        with a field that shares memory with topk_p."""
        for layers, expected in (
            (1, [[0.25], [1.25]]),
            (2, [[0.25, 0.5], [1.25, 1.5]]),
        ):
            got = self.received(True, layers)
            self.assertEqual(got.draft_probability.tolist(), expected)
            got.draft_probability.zero_()
            self.assertEqual(got.topk_p.tolist(), expected)
            self.assertIsNone(self.received(False, layers).draft_probability)


class TestOffReasons(CustomTestCase):
    def test_each_reason(self):
        """Red when a configuration without a meaning collects, or one with collects
        nothing."""
        chain = dict(
            has_sites=True, pp_size=1, topk=1, rejection_sampling=False, device="cpu"
        )
        self.assertIsNone(off_reason(**chain))
        self.assertIsNone(off_reason(**chain | dict(device="cuda", topk=None)))
        for changed, reason in (
            (dict(has_sites=False), OffReason.UNSUPPORTED_WORKER),
            (dict(pp_size=2), OffReason.PIPELINE_PARALLEL),
            (dict(topk=4), OffReason.TREE),
            (dict(rejection_sampling=True), OffReason.SAMPLED_DRAFT),
            (dict(device="npu"), OffReason.UNSUPPORTED_DEVICE),
        ):
            with self.subTest(reason=reason):
                self.assertEqual(off_reason(**chain | changed), reason)


if __name__ == "__main__":
    unittest.main()
