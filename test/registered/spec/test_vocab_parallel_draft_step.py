"""One merge launch a draft step: what it writes, and what is launched besides."""

import unittest
from types import SimpleNamespace
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sglang.srt.layers import vocab_parallel_draft as module
from sglang.srt.layers import vocab_parallel_draft_step as steps
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor
from sglang.srt.layers.vocab_parallel_draft import VocabParallelDraft
from sglang.srt.layers.vocab_parallel_draft_table import PackedRows
from sglang.srt.model_executor.forward_batch_info import ForwardBatch
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

VOCAB, ROWS, STEPS = 96, 3, 4
VIEWS = ("unsqueeze", "slice", "view", "detach", "alias", "select")


class Recorded(TorchDispatchMode):
    """Names of the torch operations that would launch work."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name not in VIEWS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


class OneRank:
    """A gather over a group of one."""

    def gather_stacked(self, words):
        return words


def packed_draft(gather=None) -> VocabParallelDraft:
    shard = SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=VOCAB)
    processor = SimpleNamespace(vocab_size=VOCAB, final_logit_softcapping=None)
    head = SimpleNamespace(shard_indices=shard)
    return VocabParallelDraft(processor, head, gather or OneRank(), "gloo")


def processor_of(logits: torch.Tensor) -> SimpleNamespace:
    return SimpleNamespace(logit_scale=None, _compute_lm_head=lambda *_: logits)


def draft_logits(rows: int = ROWS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, VOCAB, generator=generator)


class Batch(SimpleNamespace):
    def __init__(self, rows: int = ROWS):
        super().__init__(positions=torch.arange(rows) + 7)

    @property
    def step(self):
        return getattr(self, steps.STEP_ATTRIBUTE, None)


class TestOneMergeLaunch(CustomTestCase):
    def forward(self, packed, batch, logits):
        """The draft's forward, from the head on."""
        return packed.logits_output(
            processor_of(logits), None, packed.head, step=batch.step
        )

    def test_nothing_is_launched_beside_reduction_gather_and_merge(self):
        """Red when a copy, a fill or an addition is launched after the merge."""
        steps.reserve_ones("cpu")
        calls, batch, logits = [], Batch(), draft_logits()
        tokens = torch.zeros((ROWS, STEPS), dtype=torch.int64)
        words, ids, values = torch.zeros(3, 4), torch.arange(ROWS), torch.zeros(ROWS)

        def called(name, result):
            return lambda *_, **options: calls.append((name, options)) or result

        gather = SimpleNamespace(gather_stacked=called("gather", words))
        packed = packed_draft(gather)
        merge = called("merge", (ids, values, values))
        with (
            mock.patch.object(module, "shard_winner", called("winner", words)),
            mock.patch.object(module, "merge_shard_winners", merge),
            Recorded() as recorded,
        ):
            packed.begin_step(batch, tokens, 2)
            output = self.forward(packed, batch, logits)
            packed.finish_step(output, batch, tokens, 2)
        self.assertEqual([name for name, _ in calls], ["winner", "gather", "merge"])
        self.assertEqual(recorded.names, [])
        options = calls[-1][1]
        self.assertIs(options["draft_tokens"], tokens)
        self.assertIs(options["positions"], batch.positions)
        self.assertEqual(options["column"], 2)

    def test_merge_and_separate_operations_agree(self):
        """Red when the merge writes another column, row or position."""
        results = []
        for begins in (True, False):
            packed, batch = packed_draft(), Batch()
            tokens = torch.full((ROWS, STEPS), -1)
            if begins:
                packed.begin_step(batch, tokens, 1)
            output = self.forward(packed, batch, draft_logits())
            topk_p, topk_index = packed.finish_step(output, batch, tokens, 1)
            results.append((topk_p, topk_index, tokens, batch.positions))
        best = draft_logits().argmax(dim=-1)
        for topk_p, topk_index, tokens, positions in results:
            self.assertEqual(topk_p.tolist(), [[1.0]] * ROWS)
            self.assertEqual(topk_index.flatten().tolist(), best.tolist())
            self.assertEqual(tokens[:, 1].tolist(), best.tolist())
            self.assertEqual(tokens[:, [0, 2, 3]].unique().tolist(), [-1])
            self.assertEqual(positions.tolist(), [8, 9, 10])

    def test_without_a_token_buffer_only_positions_advance(self):
        """Red when the path without a token buffer (CPU) forgets the positions."""
        packed, batch = packed_draft(), Batch()
        packed.begin_step(batch, None, 1)
        output = self.forward(packed, batch, draft_logits())
        self.assertEqual(batch.positions.tolist(), [8, 9, 10])
        packed.finish_step(output, batch, None, 1)
        self.assertEqual(batch.positions.tolist(), [8, 9, 10])

    def test_other_rows_are_left_to_separate_operations(self):
        """Red when a forward on padded rows writes into a batch of fewer rows."""
        packed, batch = packed_draft(), Batch()
        tokens = torch.full((ROWS, STEPS), -1)
        packed.begin_step(batch, tokens, 1)
        output = self.forward(packed, batch, draft_logits(ROWS + 2))
        self.assertEqual(batch.positions.tolist(), [7, 8, 9])
        self.assertEqual(tokens.unique().tolist(), [-1])
        output.next_token_logits = output.next_token_logits[:ROWS]
        output.select_draft_fields(ROWS)
        packed.finish_step(output, batch, tokens, 1)
        best = draft_logits(ROWS + 2).argmax(dim=-1)[:ROWS]
        self.assertEqual(tokens[:, 1].tolist(), best.tolist())
        self.assertEqual(batch.positions.tolist(), [8, 9, 10])

    def test_a_second_head_in_one_forward_does_not_advance_twice(self):
        """Red when a step can be claimed more than once."""
        packed, batch = packed_draft(), Batch()
        packed.begin_step(batch, None, 1)
        for _ in range(2):
            output = self.forward(packed, batch, draft_logits())
        packed.finish_step(output, batch, None, 1)
        self.assertEqual(batch.positions.tolist(), [8, 9, 10])

    def test_a_failed_forward_leaves_no_step_to_other_batches(self):
        """Red when a begun step outlives its batch, or its next beginning."""
        packed, failed, other = packed_draft(), Batch(), Batch()
        packed.begin_step(failed, None, 1)

        def fail(*_):
            raise RuntimeError("planted")

        broken = SimpleNamespace(logit_scale=None, _compute_lm_head=fail)
        with self.assertRaisesRegex(RuntimeError, "planted"):
            packed.logits_output(broken, None, packed.head, step=failed.step)
        self.forward(packed, other, draft_logits())
        self.assertEqual(failed.positions.tolist(), [7, 8, 9])
        self.assertEqual(other.positions.tolist(), [7, 8, 9])

    def test_a_finished_step_is_over(self):
        """Red when the forward after a step still finds its buffers."""
        packed, batch = packed_draft(), Batch()
        packed.begin_step(batch, None, 1)
        packed.finish_step(self.forward(packed, batch, draft_logits()), batch, None, 1)
        self.assertIsNone(batch.step)

    def test_positions_that_the_forward_replaced(self):
        """Red when the batch's new positions are taken for advanced."""
        packed, batch = packed_draft(), Batch()
        packed.begin_step(batch, None, 1)
        step, batch.positions = batch.step, batch.positions.clone()
        output = packed.logits_output(
            processor_of(draft_logits()), None, packed.head, step=step
        )
        packed.finish_step(output, batch, None, 1)
        self.assertEqual(batch.positions.tolist(), [8, 9, 10])

    def test_constant_rows(self):
        """Red when a batch larger than the constant gets fewer rows, or another value."""
        steps.reserve_ones("cpu")
        for rows in (0, 1, steps.CONSTANT_ROWS, steps.CONSTANT_ROWS + 1):
            ones = steps.ones_column(rows, torch.device("cpu"))
            self.assertEqual(tuple(ones.shape), (rows, 1))
            self.assertTrue((ones == 1).all() and ones.is_contiguous())


class TestProcessorForward(CustomTestCase):
    """``LogitsProcessor.forward`` with a packed path installed."""

    def setUp(self):
        self.processor = LogitsProcessor.__new__(LogitsProcessor)
        torch.nn.Module.__init__(self.processor)
        self.processor.expected_aux_hidden_states = None
        self.batch = ForwardBatch.__new__(ForwardBatch)
        self.batch.multi_item_delimiter_indices = None
        self.batch.token_indices_to_pool = None
        self.batch.positions = torch.arange(ROWS)

    def forward(self, rows, dense_logits):
        """The output for ``rows`` rows; the dense head gives ``dense_logits``."""
        metadata = SimpleNamespace(
            forward_mode=SimpleNamespace(is_dllm_extend=lambda: False),
            is_prefill_only=False,
            extend_return_logprob=False,
            mm_input_embeds=None,
        )
        pruned = (torch.zeros(rows, 8), None, None, None, None, None)
        exit_gather = "sglang.srt.layers.logits_processor.layernorm_sp"
        with (
            mock.patch.object(
                LogitsMetadata, "from_forward_batch", return_value=metadata
            ),
            mock.patch.multiple(
                LogitsProcessor,
                _get_pruned_states=lambda *_: pruned,
                _get_hidden_states_to_store=lambda *_: None,
                _get_last_hidden_states_to_store=lambda *_: None,
                _get_logits=lambda *_: dense_logits,
            ),
            mock.patch(
                f"{exit_gather}.maybe_exit_gather",
                side_effect=lambda hidden_states, **_: (hidden_states, None),
            ),
        ):
            return self.processor.forward(None, pruned[0], None, self.batch)

    def test_the_step_goes_from_the_batch_to_the_packed_branch(self):
        """Red when LogitsProcessor.forward loses the step of its batch."""
        seen = {}
        self.processor.vocab_parallel_draft = SimpleNamespace(
            logits_output=lambda *_, **fields: seen.update(fields) or "output",
            takes=lambda rows: True,
        )
        VocabParallelDraft.begin_step(self.batch, None, 1)
        self.assertEqual(self.forward(ROWS, None), "output")
        self.assertIs(seen["step"], getattr(self.batch, steps.STEP_ATTRIBUTE))

    def test_row_counts_choose_the_path(self):
        """Red when rows that do not win go packed, or those that win do not."""
        packed = packed_draft()
        packed.packed_rows = PackedRows(((1, 1), (4, 16)))
        packed.logits_output = lambda *_, **__: "packed"
        self.processor.vocab_parallel_draft = packed
        for rows in (0, 1, 2, 3, 4, 9, 16, 17):
            dense = torch.zeros(rows, VOCAB)
            output = self.forward(rows, dense)
            with self.subTest(rows=rows):
                if rows == 1 or 4 <= rows <= 16:
                    self.assertEqual(output, "packed")
                else:
                    self.assertIs(output.next_token_logits, dense)
                    self.assertFalse(packed.is_packed(output))

    def test_without_a_table_every_row_count_goes_packed(self):
        """Red when `on` asks for measurements."""
        self.assertTrue(all(packed_draft().takes(rows) for rows in (0, 1, 5, 9999)))

    def test_a_dense_step_leaves_nothing_behind(self):
        """Red when a begun step that went dense is done by a later packed one."""
        packed, batch = packed_draft(), Batch()
        packed.begin_step(batch, None, 1)
        batch.positions.add_(1)  # as the dense arm does
        packed.begin_step(batch, None, 2)
        output = packed.logits_output(
            processor_of(draft_logits()), None, packed.head, step=batch.step
        )
        packed.finish_step(output, batch, None, 2)
        self.assertEqual(batch.positions.tolist(), [9, 10, 11])


if __name__ == "__main__":
    unittest.main()
