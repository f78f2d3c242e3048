"""Graph runners that rebuild or slice an output keep a packed draft's fields together."""

import unittest
from types import SimpleNamespace

import torch

from sglang.srt.layers.attention.base_attn_backend import SharedReadEnds
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.vocab_parallel_draft import VocabParallelDraft
from sglang.srt.model_executor.cpu_graph_runner import CPUGraphRunner
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.model_executor.runner.decode_cuda_graph_runner import (
    DecodeCudaGraphRunner,
)
from sglang.srt.model_executor.runner.prefill_cuda_graph_runner import (
    PrefillCudaGraphRunner,
)
from sglang.srt.runtime_context import get_context
from sglang.srt.speculative import (
    multi_layer_eagle_draft_extend_cuda_graph_runner as multi_layer,
)
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput, EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import graph_replay_kit as kit
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

CAPTURED = 8


def captured_output(rows: int, padding_from: int) -> LogitsProcessorOutput:
    """A packed output in graph storage; rows from ``padding_from`` are padding."""
    ids = torch.arange(rows) + 100
    logits = torch.arange(rows, dtype=torch.float32)
    output = LogitsProcessorOutput(
        next_token_logits=logits.unsqueeze(-1),
        logits_token_ids=ids,
        logits_logsumexp=logits + 0.5,
        hidden_states=torch.ones(rows, 3),
    )
    output.next_token_logits[padding_from:] = float("nan")
    output.logits_logsumexp[padding_from:] = float("nan")
    ids[padding_from:] = -(2**40)
    return output


class RowsCase(CustomTestCase):
    def assert_first_rows(self, output: LogitsProcessorOutput, rows: int) -> None:
        """All fields hold ``rows`` rows, the first ones, and a consumer takes them."""
        numbers = list(range(rows))
        self.assertEqual(output.next_token_logits.tolist(), [[n] for n in numbers])
        self.assertEqual(output.logits_token_ids.tolist(), [n + 100 for n in numbers])
        self.assertEqual(output.logits_logsumexp.tolist(), [n + 0.5 for n in numbers])
        _, topk_index = VocabParallelDraft.next_topk(output)
        self.assertEqual(topk_index.tolist(), [[n + 100] for n in numbers])


class TestPrefillRunner(RowsCase):
    def trimmed(self, full: bool, raw_bs: int, raw_num_tokens: int, output):
        runner = PrefillCudaGraphRunner.__new__(PrefillCudaGraphRunner)
        runner.model_runner = SimpleNamespace(spec_algorithm=SpeculativeAlgorithm.EAGLE)
        runner.raw_bs, runner.raw_num_tokens = raw_bs, raw_num_tokens
        runner._is_full_backend = full
        return runner._finalize_execute_output(output)

    def test_requests_of_a_full_graph(self):
        """Red when a field keeps the captured rows, or takes tokens for requests."""
        output = self.trimmed(True, 5, 20, captured_output(CAPTURED, 5))
        self.assert_first_rows(output, 5)

    def test_a_breakable_graph(self):
        """Red when the rows of an eager tail, already unpadded, are lost."""
        output = self.trimmed(False, 5, 20, captured_output(5, 5))
        self.assert_first_rows(output, 5)

    def test_no_logits(self):
        """Red when an output without logits (an inner pipeline stage) fails."""
        output = self.trimmed(
            True, 5, 20, LogitsProcessorOutput(next_token_logits=None)
        )
        self.assertIsNone(output.next_token_logits)
        self.assertIsNone(output.logits_token_ids)


class TestDecodeRunner(RowsCase):
    def execute(self, rows: int) -> LogitsProcessorOutput:
        class Runner(DecodeCudaGraphRunner):
            def __init__(self): ...

            # Fills the static buffers of a target model; not what is tested.
            def load_batch(self, batch, pp_proxy_tensors=None):
                self.raw_num_token, self._replay_graph_key = rows, CAPTURED

        runner = Runner()
        runner.model_runner = kit.model_runner(SimpleNamespace())
        runner.model_runner.model.shared_experts_config = None
        runner.attn_backend = SimpleNamespace(
            shared_read_ends=lambda mode: SharedReadEnds.UNKNOWN
        )
        runner.enable_pdmux = runner.is_dllm = runner.ragged_verify_mode = False
        runner.backend = kit.ReplayBackend()
        runner.backend.capture_one(CAPTURED, lambda: captured_output(CAPTURED, rows))
        batch = SimpleNamespace(forward_mode=ForwardMode.DECODE, batch_size=rows)
        with get_context().override_server_args():
            return runner.execute(batch)

    def test_requests_in_a_larger_graph(self):
        """Red when the replaced output keeps a field whole."""
        for rows in (5, 3, 1, 0, 8):
            with self.subTest(rows=rows):
                self.assert_first_rows(self.execute(rows), rows)


class TestCpuRunner(RowsCase):
    def execute(self, rows: int) -> LogitsProcessorOutput:
        runner = CPUGraphRunner.__new__(CPUGraphRunner)
        runner.is_encoder_decoder = False
        runner.capture_bs, runner.captured_req_width = [CAPTURED], 1
        runner.seq_len_fill_value = 1
        runner.model_runner = SimpleNamespace(
            attn_backend=SimpleNamespace(init_forward_metadata=lambda batch: None)
        )
        runner.captured_forward_batches = {CAPTURED: self.batch(CAPTURED)}
        runner.graphs = {CAPTURED: lambda *inputs: captured_output(CAPTURED, rows)}
        runner._validate_capture_hidden_mode = lambda batch: None
        runner.graphs_cross = runner.captured_forward_batches_cross = {}
        runner._get_skip_cross_attention = lambda batch: True
        with get_context().override_server_args():
            return runner.execute(self.batch(rows))

    def batch(self, rows: int) -> ForwardBatch:
        return ForwardBatch(
            forward_mode=ForwardMode.DECODE,
            batch_size=rows,
            input_ids=torch.zeros(rows, dtype=torch.int64),
            req_pool_indices=torch.zeros(rows, dtype=torch.int64),
            seq_lens=torch.ones(rows, dtype=torch.int64),
            out_cache_loc=torch.zeros(rows, dtype=torch.int64),
            positions=torch.zeros(rows, dtype=torch.int64),
            seq_lens_sum=rows,
        )

    def test_requests_in_a_larger_graph(self):
        """Red when the rebuilt output loses a field."""
        for rows in (5, 3, 1):
            with self.subTest(rows=rows):
                self.assert_first_rows(self.execute(rows), rows)


class TestMultiLayerRunner(RowsCase):
    def replay(self, prune: bool, rows: int, tokens: int, captured: int):
        runner_class = multi_layer.MultiLayerEagleMultiStepDraftExtendCudaGraphRunner
        runner = runner_class.__new__(runner_class)
        output = captured_output(captured, rows if prune else tokens)
        output.topk_p = torch.ones(captured, 1)
        output.topk_index = output.logits_token_ids.unsqueeze(-1)
        step = SimpleNamespace(replay=lambda *args, **kwargs: output)
        runner.runners, runner.prune_draft_extend_logits = [step], prune
        runner.bs, runner.raw_bs, runner.raw_num_tokens = CAPTURED, rows, tokens
        runner.seq_lens_sum = runner._replay_spec_info = runner.seq_lens_cpu = None
        runner._out_cache_loc_virtual = runner._kv_loc_plan = runner._kv_loc_cols = None
        return runner.replay(0)

    def test_selected_rows(self):
        """Red when a field keeps the padding requests."""
        output, topk_p, topk_index = self.replay(True, 5, 20, CAPTURED)
        self.assert_first_rows(output, 5)
        self.assertEqual((topk_p.shape[0], topk_index.shape[0]), (5, 5))

    def test_all_token_rows(self):
        """Red when tokens are cut to the number of requests."""
        output, _, _ = self.replay(False, 5, 20, 32)
        self.assert_first_rows(output, 20)


class TestMlpSyncPadding(RowsCase):
    """Rows that data-parallel padding appended are dropped after an eager forward."""

    def after(self, mode: ForwardMode, spec_info, rows: int) -> LogitsProcessorOutput:
        batch = ForwardBatch(
            forward_mode=mode,
            batch_size=5,
            input_ids=torch.zeros(CAPTURED, dtype=torch.int64),
            req_pool_indices=torch.zeros(CAPTURED, dtype=torch.int64),
            seq_lens=torch.ones(CAPTURED, dtype=torch.int64),
            out_cache_loc=torch.zeros(CAPTURED, dtype=torch.int64),
            positions=torch.zeros(CAPTURED, dtype=torch.int64),
            seq_lens_sum=CAPTURED,
            spec_info=spec_info,
        )
        batch.hidden_states_backup = torch.zeros(rows, 3)
        output = captured_output(4 * CAPTURED, rows)
        batch.post_forward_mlp_sync_batch(output)
        return output

    def test_draft_decode(self):
        """Red when ids or log-sum-exp keep the padding rows of a draft step."""
        self.assert_first_rows(self.after(ForwardMode.DECODE, EagleDraftInput(), 5), 5)

    def test_draft_extend(self):
        """Red when they are cut to requests instead of the requests' tokens."""
        spec_info = EagleDraftExtendInput(num_tokens_per_req=4)
        output = self.after(ForwardMode.DRAFT_EXTEND_V2, spec_info, 20)
        self.assert_first_rows(output, 20)


if __name__ == "__main__":
    unittest.main()
