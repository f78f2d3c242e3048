"""Probabilities of chains on their way between batches, rounds and servers."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.managers.overlap_utils import FutureMap, RelayPayload
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative import eagle_disaggregation, eagle_info
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")


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


if __name__ == "__main__":
    unittest.main()
