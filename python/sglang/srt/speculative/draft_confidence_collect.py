"""Pairs of draft probability and acceptance, written for an offline calibration fit."""

from __future__ import annotations

import contextlib
import glob
import logging
from pathlib import Path
from typing import Any, Iterator, Optional, Sequence

import torch

from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.srt.speculative.draft_confidence import probability_logit
from sglang.srt.speculative.dspark_components.dspark_sts import StsDataRecorder

logger = logging.getLogger(__name__)

# Verifies that a killed server can lose; an idle server has written all of them.
FLUSH_EVERY = 64


class DraftConfidenceCollector:
    """Writes SGLang's STS shards: ``logits`` and ``prefix_mask``, FP32 ``[n, steps]``.

    An adaptive number of steps changes the width from verify to verify and a shard has
    one width: there is one recorder a width, and the shards of ``steps`` drafts are
    ``{path_stem}.steps{steps}.{number}.pt``. They fit
    ``sglang.benchmark.dspark_sts_fit --data-glob '{path_stem}.steps3.*.pt'``.
    """

    def __init__(self, path_stem: str, flush_every: int = FLUSH_EVERY) -> None:
        self._path_stem = path_stem
        self._flush_every = flush_every
        self._recorders: dict[int, StsDataRecorder] = {}
        self._failed = False

    @classmethod
    def from_env(cls) -> Optional[DraftConfidenceCollector]:
        """The collector of this rank; None where this rank writes nothing.

        Raises:
            ValueError: the variable is set without the flag whose values it collects, or
                together with simulated acceptance.
        """
        path = envs.SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH.get()
        if not path:
            return None
        name = envs.SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH.name
        if not get_spec().speculative_draft_confidence:
            raise ValueError(
                f"{name}={path} collects draft probabilities, which this server does not "
                "compute: start it with --speculative-draft-confidence, or unset it."
            )
        if envs.SGLANG_SIMULATE_ACC_LEN.get() > 0:
            raise ValueError(
                f"{name}={path} and SGLANG_SIMULATE_ACC_LEN: simulated acceptance says "
                "nothing about a draft. Unset one of them."
            )
        parallel = get_parallel()
        if parallel.attn_tp_rank or parallel.attn_cp_rank or parallel.pp_rank:
            return None
        replica = _replica(parallel)
        _check_writable(name, path + replica)
        return cls(path + replica)

    def record(self, probability: torch.Tensor, num_correct: Sequence[int]) -> None:
        """One verify of real rows.

        Args:
            probability: FP32 ``[rows, steps]``; a verify without drafts writes nothing.
            num_correct: ``[rows]``, drafts that the target took, bonus token excluded.
        """
        steps = probability.shape[-1]
        if steps == 0 or self._failed:
            return
        recorder = self._recorders.get(steps)
        if recorder is None:
            recorder = self._recorders[steps] = StsDataRecorder(
                path_stem=f"{self._path_stem}.steps{steps}",
                gamma=steps,
                flush_every=self._flush_every,
            )
        with self._stops_when_it_cannot_write():
            recorder.record(
                confidence_raw=probability_logit(probability),
                num_correct_drafts=torch.tensor(num_correct),
            )

    def flush(self) -> None:
        """Write what is buffered; the scheduler calls it when it has nothing to do."""
        with self._stops_when_it_cannot_write():
            for recorder in self._recorders.values():
                recorder.flush()

    @contextlib.contextmanager
    def _stops_when_it_cannot_write(self) -> Iterator[None]:
        try:
            yield
        # torch.save says RuntimeError where a folder is gone or a disk is full.
        except (OSError, RuntimeError):
            logger.exception(
                "no more pairs are collected: writing to %s failed", self._path_stem
            )
            self._failed = True
            self._recorders.clear()


def _replica(parallel: Any) -> str:
    """What tells the schedulers apart that serve other requests. They are replicas or
    the ranks of data-parallel attention: SGLang refuses both together."""
    if parallel.attn_dp_size > 1:
        return f".dp{parallel.attn_dp_rank}"
    return f".dp{parallel.dp_rank}" if parallel.dp_size > 1 else ""


def _check_writable(name: str, path_stem: str) -> None:
    """ValueError when shards cannot be written, or would mix with those of another
    server."""
    try:
        Path(path_stem).parent.mkdir(parents=True, exist_ok=True)
        probe = Path(f"{path_stem}.steps")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"{name}={path_stem}: cannot write there ({error}). It is a path and the "
            "beginning of a file name, such as /data/pairs/run1."
        ) from error
    old = glob.glob(glob.escape(path_stem) + ".steps*.pt")
    if old:
        raise ValueError(
            f"{name}={path_stem}: {len(old)} shards of another server are there, such as "
            f"{old[0]}. Remove them, or choose another name."
        )
