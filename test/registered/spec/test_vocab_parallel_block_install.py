"""Which draft path a DFlash or DSpark worker gets, and where it is put."""

import unittest

from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.kits import block_install_rank_kit as kit
from sglang.test.kits.gloo_ranks_kit import run_ranks
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=35, suite="base-a-test-cpu")

PACKED = {"mode": "on", "path": "packed", "transport": "gloo", "vocab_size": kit.VOCAB}


def dflash(**changed):
    return dict(algorithm="DFLASH", **changed)


def dspark(**changed):
    return dict(algorithm="DSPARK", **changed)


class TestBlockInstall(CustomTestCase):
    def install(self, *cases, world_size=2):
        ranks = run_ranks(kit.installations, world_size, list(cases))
        self.assertTrue(all(rank == ranks[0] for rank in ranks), ranks)
        return ranks[0]

    def test_where_it_is_installed(self):
        """Red if a kind of draft gets another's packed path, or none."""
        plain, domino, markov = self.install(
            dflash(), dflash(worker={"_is_domino": True}), dspark()
        )
        for result, place in (
            (plain, "PackedDFlash"),
            (domino, "PackedDomino"),
            (markov, "PackedMarkov"),
        ):
            self.assertEqual(result, {"status": PACKED, "places": [place]})

    def test_a_smaller_draft_vocabulary(self):
        """Red if ids that the Markov head cannot bias can win."""
        (result,) = self.install(dspark(worker={"markov_vocab": 70}))
        self.assertEqual(result["status"], PACKED | {"vocab_size": 70})

    def test_reasons(self):
        """Red if a configuration that the packed path does not serve takes it."""
        domino = {"_is_domino": True}
        cases = {
            "sampled_draft": dspark(worker={"_greedy_draft": False}),
            "candidate_search": dflash(worker={"selector": "lattice"}),
            "whole_vocabulary": dflash(
                worker=domino | {"domino_candidate_pool_size": 0}
            ),
            "unsupported_device": dflash(worker={"device": "npu"}),
            "megakernel": dspark(worker={"megakernel": True}),
            # Only the last stage has a draft model.
            "pipeline_parallel": dspark(pp_size=2, worker={"draft_model": None}),
            "dp_attention": dflash(attn_dp_size=2),
            "dp_lm_head": dspark(enable_dp_lm_head=True),
            "not_measured": dflash(speculative_vocab_parallel_draft="auto"),
            "added_vocab": dspark(head={"num_embeddings": kit.VOCAB + 2}),
            "unsupported_head": dspark(worker={"pruned": True}),
            "rank_disagreement": dspark(broken_rank=1),
        }
        results = self.install(*cases.values())
        for reason, result in zip(cases, results, strict=True):
            with self.subTest(reason=reason):
                status = {"mode": "on", "path": "dense", "reason": reason}
                if reason == "not_measured":
                    status["mode"] = "auto"
                self.assertEqual(result, {"status": status, "places": []})

    def test_other_searches_and_pools(self):
        """Red if LiLiCorr, or a pool as large as the vocabulary, is taken for eligible."""
        pool = {"_is_domino": True, "domino_candidate_pool_size": kit.VOCAB}
        lilicorr, whole, one_less = self.install(
            dflash(worker={"lilicorr": "head"}),
            dflash(worker=pool),
            dflash(worker=pool | {"domino_candidate_pool_size": kit.VOCAB - 1}),
        )
        self.assertEqual(lilicorr["status"]["reason"], "candidate_search")
        self.assertEqual(whole["status"]["reason"], "whole_vocabulary")
        self.assertEqual(one_less["places"], ["PackedDomino"])

    def test_a_head_on_fewer_columns(self):
        """Red if a head that is not its shard is multiplied: every rank finds it so."""
        flat = {"embedding_dim": 3}
        (result,) = self.install(dspark(head=flat))
        self.assertEqual(result["status"]["reason"], "unsupported_head")

    def test_one_rank(self):
        """Red if a single rank exchanges with itself."""
        results = self.install(dflash(), dspark(), world_size=1)
        for result in results:
            self.assertEqual(result["status"]["reason"], "tp1")


if __name__ == "__main__":
    unittest.main()
