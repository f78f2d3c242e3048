"""The dense path's log-sum-exp on a GPU: the bits that the shards' ranks compute."""

import unittest
from types import SimpleNamespace

import torch

from sglang.kernels.ops.speculative.shard_winner import (
    merge_shard_winners,
    shard_winner,
)
from sglang.srt.layers.dense_logsumexp import VocabShards, dense_logsumexp
from sglang.srt.speculative.chain_confidence_install import _head_dtype
from sglang.test.ci.ci_register import register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cuda_ci(est_time=30, stage="base-b", runner_config="1-gpu-small")

needs_cuda = unittest.skipUnless(torch.cuda.is_available(), "needs a CUDA device")

ROWS = (1, 7, 64)
# Even; a last shard that is partly padding; one of a single column.
SPLITS = (
    (62080, VocabShards(2, 31040)),
    (1003, VocabShards(3, 384)),
    (257, VocabShards(2, 256)),
)


def shard_logsumexp(
    logits: torch.Tensor, shards: VocabShards, padded: bool
) -> torch.Tensor:
    """What the ranks of a packed draft make of their heads' own logits, FP32
    ``[rows]``. ``logits``: ``[rows, vocab]`` in the dtype of the head."""
    rows, vocab = logits.shape
    words = []
    for rank in range(shards.count):
        start = min(rank * shards.width, vocab)
        valid = min(shards.width, vocab - start)
        shape = (rows, shards.width if padded else valid)
        # Padding columns hold what must not be read.
        own = torch.full(shape, 1e4, dtype=logits.dtype, device=logits.device)
        own[:, :valid] = logits[:, start : start + valid]
        words.append(shard_winner(own, valid_width=valid, vocab_start=start))
    return merge_shard_winners(torch.cat(words), rows=rows, vocab_size=vocab)[2]


@needs_cuda
class TestDenseLogsumexpOnCuda(CustomTestCase):
    def head_logits(self, rows: int, vocab: int, dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator(device="cuda").manual_seed(rows + vocab)
        logits = torch.randn(rows, vocab, generator=generator, device="cuda")
        return (logits * 3).to(dtype)

    def assert_same_bits(self, got: torch.Tensor, wanted: torch.Tensor) -> None:
        self.assertEqual(
            got.view(torch.int32).tolist(), wanted.view(torch.int32).tolist()
        )

    def test_a_narrow_head(self):
        """Red when the gathered FP32 logits are reduced as FP32: a narrow dtype is read
        more columns at a time, which changes the order of additions."""
        for dtype in (torch.bfloat16, torch.float16):
            for rows in ROWS:
                for vocab, shards in SPLITS:
                    for padded in (True, False):
                        logits = self.head_logits(rows, vocab, dtype)
                        got = dense_logsumexp(logits.float(), shards, dtype, padded)
                        wanted = shard_logsumexp(logits, shards, padded)
                        with self.subTest(
                            dtype=dtype, rows=rows, shards=shards, padded=padded
                        ):
                            self.assert_same_bits(got, wanted)

    def test_logits_in_the_heads_dtype(self):
        """Red when a shard's columns are read in place: row stride and alignment are
        those of the whole row then."""
        for dtype in (torch.bfloat16, torch.float32):
            for vocab, shards in SPLITS:
                logits = self.head_logits(7, vocab, dtype)
                got = dense_logsumexp(logits, shards)
                with self.subTest(dtype=dtype, shards=shards):
                    self.assert_same_bits(got, shard_logsumexp(logits, shards, True))

    def test_a_softcap(self):
        """Red when logits that a softcap made FP32 values are rounded to the head's
        dtype again."""
        for vocab, shards in SPLITS:
            logits = self.head_logits(7, vocab, torch.bfloat16).float()
            capped = 5 * torch.tanh(logits / 5)
            got = dense_logsumexp(capped, shards)
            with self.subTest(shards=shards):
                self.assert_same_bits(got, shard_logsumexp(capped, shards, True))
                error = got.double() - capped.double().logsumexp(-1)
                self.assertLess(error.abs().max().item(), 2e-5)

    def test_empty_shards(self):
        """Red when a rank without tokens fails, or its padding counts."""
        logits = self.head_logits(7, 301, torch.bfloat16)
        shards = VocabShards(8, 64)
        got = dense_logsumexp(logits.float(), shards, torch.bfloat16)
        self.assert_same_bits(got, shard_logsumexp(logits, shards, True))


@needs_cuda
class TestHeadDtypeOnCuda(CustomTestCase):
    def dtype_of(self, softcap: object) -> object:
        weight = torch.zeros(16, 8, dtype=torch.bfloat16, device="cuda")
        head = SimpleNamespace(embedding_dim=8, weight=weight)
        processor = SimpleNamespace(
            final_logit_softcapping=softcap,
            _compute_lm_head=lambda row, head: row @ head.weight.T,
        )
        model = SimpleNamespace(lm_head=head, logits_processor=processor)
        runner = SimpleNamespace(model=model, dtype=torch.bfloat16, device="cuda")
        return _head_dtype(runner)

    def test_what_the_head_puts_out(self):
        """Red when the dtype is another than the head's, or a softcap's FP32 values are
        taken for it."""
        self.assertEqual(self.dtype_of(None), torch.bfloat16)
        self.assertIsNone(self.dtype_of(30.0))


if __name__ == "__main__":
    unittest.main()
