"""EAGLE3's draft loop with a token map."""

import unittest
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative import eagle_worker_v2
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits.one_rank_draft_kit import packed_draft, packed_output
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

VOCAB, DRAFT_VOCAB, HIDDEN, ROWS, STEPS = 301, 96, 4, 3, 4


class TokenMapCases:
    """EAGLE3's draft loop with a draft vocabulary of its own."""

    writes_columns = False

    def setUp(self):
        # On CUDA a chain without a map is written column by column into one buffer.
        self.enterContext(
            patch.object(eagle_worker_v2, "_is_cuda", self.writes_columns)
        )
        self.probed, self.fed = [], []
        self.enterContext(
            patch.object(
                eagle_worker_v2,
                "maybe_detect_oob",
                lambda ids, low, high, _: self.probed.append((ids.clone(), low, high)),
            )
        )
        spec = SimpleNamespace(speculative_use_rejection_sampling=False)
        self.enterContext(patch.object(eagle_worker_v2, "get_spec", lambda: spec))
        generator = torch.Generator().manual_seed(3)
        # Not a multiple of anything: no draft id is its own target id.
        self.hot_ids = torch.arange(DRAFT_VOCAB) * 3 + 11
        self.logits = torch.randn(VOCAB, DRAFT_VOCAB, generator=generator)
        self.packed = packed_draft(DRAFT_VOCAB)

    def forward(self, batch):
        """Logits of the next draft token depend on the token that was fed."""
        self.fed.append(batch.input_ids.flatten().clone())
        logits = self.logits[self.fed[-1]]
        step = getattr(batch, "vocab_parallel_draft_step", None)
        return SimpleNamespace(logits_output=packed_output(self.packed, logits, step))

    def worker(self):
        worker = eagle_worker_v2.EagleDraftWorker.__new__(
            eagle_worker_v2.EagleDraftWorker
        )
        model_config = SimpleNamespace(
            hf_config=SimpleNamespace(architectures=["Draft"]), model_is_mrope=False
        )
        worker.draft_runner = SimpleNamespace(
            forward=self.forward, canary_manager=None, model_config=model_config
        )
        worker.draft_attn_backend = SimpleNamespace(attn_backends=[None] * STEPS)
        worker.topk, worker.hot_token_id = 1, self.hot_ids
        worker.speculative_num_steps = STEPS
        worker.index_share_for_mtp_iteration = False
        worker.seed_dsa_topk_from_draft_extend = False
        constants = torch.zeros(ROWS, STEPS, dtype=torch.int64)
        worker._topk1_parents_prealloc = constants
        worker._topk1_score_indices_prealloc = constants
        worker.vocab_parallel_draft = self.packed
        return worker

    def test_draft_ids_are_mapped_once_after_the_merge(self):
        """Red when a draft id is fed, verified or mapped as a target id: mapped twice,
        not at all, or before the probe, or probed against another vocabulary."""
        seed = torch.tensor([[5], [0], [95]])
        batch = SimpleNamespace(
            forward_mode=ForwardMode.DECODE,
            batch_size=ROWS,
            out_cache_loc=torch.arange(ROWS * STEPS),
            positions=torch.tensor([7, 9, 20]),
            spec_info=EagleDraftInput(
                topk_p=torch.ones(ROWS, 1),
                topk_index=seed,
                hidden_states=torch.zeros(ROWS, HIDDEN),
            ),
            sampling_info=SimpleNamespace(is_all_greedy=True),
            moe_num_token_non_padded=None,
        )
        expected = [self.hot_ids[seed.flatten()]]
        drafted = []
        for _ in range(STEPS - 1):
            drafted.append(self.logits[expected[-1]].argmax(-1))
            expected.append(self.hot_ids[drafted[-1]])
        _, _, draft_tokens, _ = self.worker().draft_forward(batch)
        self.assertEqual(draft_tokens.tolist(), torch.stack(expected, dim=1).tolist())
        self.assertEqual(
            [ids.tolist() for ids in self.fed], [ids.tolist() for ids in expected[:-1]]
        )
        self.assertEqual(
            [(ids.flatten().tolist(), low, high) for ids, low, high in self.probed],
            [(ids.tolist(), 0, DRAFT_VOCAB) for ids in drafted],
        )
        self.assertEqual(batch.positions.tolist(), [10, 12, 23])


class TestTokenMap(TokenMapCases, CustomTestCase):
    """The loop as it runs on a CPU."""


class TestTokenMapOnCuda(TokenMapCases, CustomTestCase):
    """The loop as it runs on CUDA."""

    writes_columns = True


if __name__ == "__main__":
    unittest.main()
