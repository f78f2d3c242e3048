"""Pairs of draft probability and acceptance, as shards."""

import os
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch

from sglang.benchmark.dspark_sts_fit import load_collected_shards
from sglang.srt.environ import envs
from sglang.srt.speculative.draft_confidence_collect import DraftConfidenceCollector
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")

VARIABLE = envs.SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH.name
MODULE = "sglang.srt.speculative.draft_confidence_collect"


class TestCollector(CustomTestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.stem = str(Path(folder.name) / "pairs" / "run")

    def from_env(self, flag: bool = True, path: str | None = None, **parallel):
        ranks = ("attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "pp_rank")
        parallel = dict.fromkeys(ranks, 0) | {
            **{"dp_rank": None, "dp_size": 1, "attn_dp_size": 1},
            **parallel,
        }
        spec = SimpleNamespace(speculative_draft_confidence=flag)
        with (
            patch(f"{MODULE}.get_spec", lambda: spec),
            patch(f"{MODULE}.get_parallel", lambda: SimpleNamespace(**parallel)),
            # Its `override` leaves the variable behind when its body raises.
            patch.dict(os.environ, {VARIABLE: path or self.stem}),
        ):
            return DraftConfidenceCollector.from_env()

    def shards(self) -> list:
        return sorted(path.name for path in Path(self.stem).parent.glob("*"))

    def test_shards_of_every_width(self):
        """Red when verifies of several numbers of steps share a shard, when an outcome
        is off by the bonus token, or when upstream's fit cannot read the pairs."""
        collector = self.from_env()
        collector.record(torch.tensor([[0.5, 0.75, 1.0]]), [2])
        collector.record(torch.tensor([[0.5]]), [0])
        collector.record(torch.empty(1, 0), [0])
        collector.record(torch.tensor([[0.5, 0.5, 0.0]]), [3])
        collector.flush()
        self.assertEqual(self.shards(), ["run.steps1.0.pt", "run.steps3.0.pt"])
        logits, taken = load_collected_shards(data_glob=f"{self.stem}.steps3.*.pt")
        self.assertEqual(taken.tolist(), [[1, 1, 0], [1, 1, 1]])
        self.assertTrue(bool(logits.isfinite().all()))
        back = logits.sigmoid()
        wanted = torch.tensor([[0.5, 0.75, 1.0], [0.5, 0.5, 0.0]])
        self.assertTrue(torch.allclose(back, wanted, atol=1e-6))

    def test_a_folder_that_is_gone_ends_the_collection_only(self):
        """Red when a full disk or a lost folder reaches the scheduler, or every verify
        tries again."""
        collector = self.from_env()
        collector.record(torch.tensor([[0.5]]), [1])
        folder = Path(self.stem).parent
        folder.rmdir()
        folder.write_text("a file in its place")
        with self.assertLogs(MODULE, "ERROR") as logs:
            collector.flush()
        self.assertIn("no more pairs are collected", logs.output[0])
        with self.assertNoLogs(MODULE, "ERROR"):
            collector.record(torch.tensor([[0.5]]), [1])
            collector.flush()

    def test_by_count(self):
        """Red when a busy server keeps everything in memory, or writes every verify."""
        collector = DraftConfidenceCollector(self.stem, flush_every=2)
        for count in range(5):
            collector.record(torch.tensor([[0.5]]), [1])
            written = 0 if count == 0 else len(self.shards())
            self.assertEqual(written, (count + 1) // 2)
        collector.flush()
        collector.flush()
        self.assertEqual(len(self.shards()), 3)

    def test_one_rank_of_a_replica_writes(self):
        """Red when ranks write the same pairs twice, or replicas overwrite each other."""
        self.assertIsNone(self.from_env(attn_tp_rank=1))
        self.assertIsNone(self.from_env(attn_cp_rank=1))
        self.assertIsNone(self.from_env(pp_rank=1))
        for rank in range(2):
            collector = self.from_env(dp_rank=rank, dp_size=2)
            collector.record(torch.tensor([[0.5]]), [1])
            collector.flush()
        names = ["run.dp0.steps1.0.pt", "run.dp1.steps1.0.pt"]
        self.assertEqual(self.shards(), names)

    def test_attention_data_parallel_ranks_write_apart(self):
        """Red when the schedulers of data-parallel attention, which have requests of
        their own, overwrite each other."""
        for rank in range(2):
            # The controller tells no rank of a replica.
            collector = self.from_env(attn_dp_rank=rank, attn_dp_size=2, dp_rank=0)
            collector.record(torch.tensor([[0.5]]), [1])
            collector.flush()
        names = ["run.dp0.steps1.0.pt", "run.dp1.steps1.0.pt"]
        self.assertEqual(self.shards(), names)

    def test_not_asked_for(self):
        """Red when a server that was not asked to collect does."""
        with patch.dict(os.environ, {VARIABLE: ""}):
            self.assertIsNone(DraftConfidenceCollector.from_env())

    def assert_refused(self, *parts: str, **options) -> None:
        with self.assertRaises(ValueError) as caught:
            self.from_env(**options)
        for part in ("SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH", *parts):
            self.assertIn(part, str(caught.exception))

    def test_refused(self):
        """Red when pairs are lost in silence, or mix with those of another server."""
        self.assert_refused("--speculative-draft-confidence", flag=False)
        with envs.SGLANG_SIMULATE_ACC_LEN.override(2.0):
            self.assert_refused("SGLANG_SIMULATE_ACC_LEN")
        file = Path(self.stem)
        file.parent.mkdir()
        file.touch()
        self.assert_refused("cannot write there", path=str(file / "run"))
        Path(f"{self.stem}.steps3.0.pt").touch()
        self.assert_refused("another server", "run.steps3.0.pt")


if __name__ == "__main__":
    unittest.main()
