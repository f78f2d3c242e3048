"""The Triton kernels of the packed draft words on a GPU: graphs, launches, softcap."""

import importlib.util
import unittest

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.test.ci.ci_register import register_cuda_ci
from sglang.test.kits import shard_winner_kernel_cases as kernels
from sglang.test.kits import shard_winner_numeric_cases as numerics
from sglang.test.kits import shard_winner_selection_cases as selection
from sglang.test.kits.shard_winner_kit import (
    Selection,
    ShardWinnerCase,
    assert_matches_reference,
    reference_selection,
)

register_cuda_ci(est_time=60, stage="base-b", runner_config="1-gpu-small")

SOFTCAP_MODULE = "sglang.kernels.ops.activation.softcap"
needs_cuda = unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")


def has_dense_softcap() -> bool:
    try:
        return importlib.util.find_spec(SOFTCAP_MODULE) is not None
    except ModuleNotFoundError:
        return False


@needs_cuda
class TestKernelsOnCuda(kernels.KernelCases, ShardWinnerCase):
    device = "cuda"


@needs_cuda
class TestSoftcapCasesOnCuda(
    kernels.SoftcapWithinALastBit, numerics.SoftcapCases, ShardWinnerCase
):
    device = "cuda"


@needs_cuda
class TestCudaGraph(ShardWinnerCase):
    device = "cuda"

    def capture(self, logits, draft_tokens, positions):
        """A graph of one draft step on a single rank, and its results."""

        def step():
            width = logits.shape[1]
            words = shard_winner(logits, valid_width=width, vocab_start=0)
            return merge_shard_winners(
                words,
                rows=logits.shape[0],
                vocab_size=width,
                draft_tokens=draft_tokens,
                column=1,
                positions=positions,
            )

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step()
        return graph, Selection(*results)

    def test_replay_follows_its_inputs(self):
        # Red if a launch depends on values, a result is read from the first run, or a
        # padding row of the captured batch reaches a real one.
        for rows, real, width in ((1, 1, 31040), (8, 5, 31040), (600, 598, 1003)):
            logits = torch.zeros(rows, width, dtype=torch.bfloat16, device="cuda")
            draft_tokens = torch.full((rows, 3), -1, device="cuda")
            positions = torch.zeros(rows, dtype=torch.int64, device="cuda")
            graph, results = self.capture(logits, draft_tokens, positions)
            positions.zero_()
            for replay, garbage in enumerate((float("nan"), float("inf"), 1e30)):
                content = selection.random_logits(real, width, torch.bfloat16, replay)
                logits.fill_(garbage)
                logits[:real] = content.cuda()
                graph.replay()
                with self.subTest(rows=rows, replay=replay):
                    rows_of = Selection(*(field[:real] for field in results))
                    assert_matches_reference(rows_of, reference_selection(content))
                    written = draft_tokens[:real].cpu()
                    self.assertTrue(torch.equal(written[:, 1], rows_of[0].cpu()))
                    self.assertEqual(written[:, [0, 2]].unique().tolist(), [-1])
                    self.assertEqual(positions.unique().tolist(), [replay + 1])

    def test_launches_of_a_draft_step(self):
        # Red if a copy, a fill, a third local launch or a second merge launch appears.
        from torch.profiler import ProfilerActivity, profile

        for rows, local in ((1, 2), (64, 2), (600, 1)):
            logits = selection.random_logits(rows, 31040, torch.bfloat16).cuda()
            draft_tokens = torch.zeros(rows, 3, dtype=torch.int64, device="cuda")
            positions = torch.zeros(rows, dtype=torch.int64, device="cuda")
            graph, _ = self.capture(logits, draft_tokens, positions)
            with profile(activities=[ProfilerActivity.CUDA]) as recorded:
                graph.replay()
                torch.cuda.synchronize()
            names = [
                event.name
                for event in recorded.events()
                if event.device_type == torch.autograd.DeviceType.CUDA
            ]
            with self.subTest(rows=rows):
                self.assertEqual(len(names), local + 1, names)


@needs_cuda
@unittest.skipUnless(has_dense_softcap(), "needs SGLang's own softcap kernel")
class TestSoftcapBitsOnCuda(ShardWinnerCase):
    device = "cuda"

    def test_softcap_is_the_dense_paths_bit_for_bit(self):
        # Red if division, tanh or product differ from the dense path's by one bit.
        dense_softcap = importlib.import_module(SOFTCAP_MODULE)
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for cap in (30.0, 0.5):
                logits = selection.random_logits(64, 31040, dtype) * 7
                dense = torch.empty(logits.shape, device="cuda")
                dense_softcap.softcap_to_float32_logits(logits.cuda(), cap, dense)
                with self.subTest(dtype=dtype, cap=cap):
                    assert_matches_reference(
                        self.select(logits, softcap=cap), reference_selection(dense)
                    )


if __name__ == "__main__":
    unittest.main()
