"""Decode steps of a DSpark worker up to the verification: proposal, budget, lengths."""

import json
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Optional
from unittest.mock import patch

import torch

from sglang.srt.managers.overlap_utils import ConfidenceRelay
from sglang.srt.speculative.dspark_components import dspark_planner
from sglang.srt.speculative.dspark_components.dspark_draft import (
    DraftBlockProposer,
    DraftForwardResult,
    DraftNoise,
)
from sglang.srt.speculative.dspark_components.dspark_draft_sampler import (
    DsparkDraftSampler,
)
from sglang.srt.speculative.spec_tp_sync import SpecTpSync
from sglang.test.kits.dspark_draft_kit import GAMMA, DraftModel

VOCAB = 1003
POOL = 32
"""Requests that a server of the tests could hold."""

# A step takes longer by the token, so that verifying one more pays or does not.
COSTS = {
    "sample_batch_tokens": list(range(1, 65)),
    "sample_steps_per_sec": [1000 / (10 + 0.35 * tokens) for tokens in range(1, 65)],
    "max_batch_tokens": 64,
}


class Steps:
    """Decode steps of one server: a proposal, its budget, its verify lengths.

    Two planners look at the same confidence: one computes its budget at once, as
    without overlap, the other one takes it from the relay of an earlier step.
    """

    def __init__(
        self,
        group: Any,
        model: DraftModel,
        bs: int,
        greedy: bool,
        calibration: Optional[List[float]],
    ):
        self.model, self.bs, self.greedy = model, bs, greedy
        self.tp_sync = SpecTpSync(group)
        self.noise = DraftNoise(key=1, offset=torch.zeros(1, dtype=torch.int64))
        self.pool = SimpleNamespace(
            req_generation=torch.ones(POOL, dtype=torch.int64),
            req_to_token=torch.zeros(POOL, 1),
        )
        self.requests = torch.arange(bs) * 3 % POOL
        self.planner = self._planner(calibration, overlap=False)
        self.overlapped = self._planner(calibration, overlap=True)
        self.relay = ConfidenceRelay(
            device=torch.device("cpu"), req_pool_size=POOL, pool=self.pool
        )
        self.sampler = DsparkDraftSampler(
            model=model,
            gamma=GAMMA,
            max_bs=bs,
            device=torch.device("cpu"),
            noise=self.noise,
            tp_sync=self.tp_sync,
            greedy_draft=greedy,
        )
        if not greedy:
            # SGLang asks CUDA whether it captures before it sizes them.
            dtype = model.markov_head.step_logits_dtype(model.lm_head.weight.dtype)
            self.sampler.step_logits = torch.empty(bs, GAMMA, VOCAB, dtype=dtype)

    def _planner(self, calibration: Optional[List[float]], overlap: bool) -> Any:
        runner = SimpleNamespace(
            req_to_token_pool=self.pool, decode_cuda_graph_runner=None
        )
        with planner_context(overlap, calibration):
            return dspark_planner.DSparkVerifyPlanner(
                draft_model=self.model,
                gamma=GAMMA,
                model_runner=runner,
                device=torch.device("cpu"),
                tp_rank=0,
                verify_num_draft_tokens=GAMMA + 1,
                tp_sync=self.tp_sync,
            )

    def run(
        self, hidden: torch.Tensor, temperatures: Optional[List[float]], folded: bool
    ) -> Dict[str, Any]:
        anchors = torch.arange(self.bs) * 13 % 50
        proposal = self._propose(hidden, anchors, sampling_of(temperatures), folded)
        confidence = proposal.confidence
        with planner_context(overlap=False):
            budget, lengths = self._plan(self.planner, confidence, None)
        with planner_context(overlap=True):
            draft_input = SimpleNamespace(
                verify_token_budget=None, future_indices=self.requests
            )
            batch = SimpleNamespace(
                spec_info=draft_input,
                req_pool_indices=self.requests,
                req_pool_indices_cpu=self.requests,
                forward_mode=SimpleNamespace(is_extend=lambda: False),
                is_extend_in_batch=False,
                batch_size=lambda: self.bs,
            )
            resolve = SimpleNamespace(
                resolve_confidence_cpu=lambda batch: self.relay.resolve(
                    batch, stream=None, publish_ready=None
                )
            )
            self.overlapped.prepare_verify_budget(batch, resolve)
            relayed, relayed_lengths = self._plan(
                self.overlapped, confidence, draft_input
            )
        self.relay.scatter(self.requests, confidence)
        logits = proposal.draft_block.corrected_logits
        return {
            "tokens": proposal.draft_block.draft_tokens.clone().numpy(),
            "confidence": confidence.clone().numpy(),
            "raw": proposal.confidence_raw.float().clone().numpy(),
            "logits": None if logits is None else logits.float().clone().numpy(),
            "decisions": (budget, lengths, relayed, relayed_lengths),
        }

    def _propose(self, hidden, anchors, sampling_info, folded):
        proposer = DraftBlockProposer.__new__(DraftBlockProposer)
        proposer.draft_model, proposer.gamma = self.model, GAMMA
        proposer.sample_from_anchor = True
        proposer._draft_sampler = self.sampler
        proposer._greedy_draft, proposer._noise = self.greedy, self.noise
        proposer._tp_sync = self.tp_sync
        proposer._base_logits_context = nullcontext

        def forward(**_: Any) -> DraftForwardResult:
            if folded:
                self.sampler.stage_sampling_params(
                    bs=self.bs, sampling_info=sampling_info
                )
                self.sampler(hidden.flatten(0, 1), anchors.repeat_interleave(GAMMA))
            return DraftForwardResult(
                draft_block_ids=anchors[:, None].expand(-1, GAMMA),
                raw_hidden=hidden.flatten(0, 1),
                draft_hidden_3d=hidden,
                can_run_graph=folded,
            )

        proposer._run_forward = forward
        proposal = proposer.propose(
            batch=None,
            draft_input=None,
            verify_window=None,
            bs=self.bs,
            device="cpu",
            target_model=SimpleNamespace(get_input_embeddings=lambda: None),
            sampling_info=sampling_info,
        )
        assert proposal.folded == folded
        return proposal

    def _plan(self, planner: Any, confidence: torch.Tensor, draft_input: Any):
        rows = dict(
            req_pool_indices=self.requests,
            prefix_lens=torch.full((self.bs,), 20),
        )
        budget = planner.resolve_verify_token_budget(
            draft_input=draft_input or SimpleNamespace(verify_token_budget=None),
            confidence=confidence,
            **rows,
        )
        layout = planner.schedule_layout(
            device=torch.device("cpu"), confidence=confidence, budget=budget, **rows
        )
        return budget, None if layout is None else layout.verify_lens.tolist()


def sampling_of(temperatures: Optional[List[float]]) -> Optional[SimpleNamespace]:
    """Of requests that ask for ``temperatures``; 0 asks for the most likely token."""
    if temperatures is None:
        return None
    values = torch.tensor(temperatures).view(-1, 1)
    return SimpleNamespace(
        temperatures=torch.where(values == 0, 1.0, values),
        top_ks=torch.where(values == 0, 1, 1 << 30).view(-1),
    )


def planner_context(
    overlap: bool, calibration: Optional[List[float]] = None
) -> ExitStack:
    """The arguments that a planner reads, with a cost table that is not flat."""
    stack = ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    (folder / "costs.json").write_text(json.dumps(COSTS))
    sts_path = None
    if calibration is not None:
        sts_path = str(folder / "temperatures.json")
        Path(sts_path).write_text(json.dumps({"temperatures": calibration}))
    spec = SimpleNamespace(
        speculative_dspark_align_verify_tokens_to_graph_tier=False,
        speculative_dspark_confidence_sts_path=sts_path,
        speculative_dspark_sps_table_path=str(folder / "costs.json"),
    )
    schedule = SimpleNamespace(
        disable_overlap_schedule=not overlap, max_running_requests=POOL
    )
    for name, value in (
        ("get_spec", lambda: spec),
        ("get_schedule", lambda: schedule),
        ("is_dp_attention_enabled", lambda: False),
    ):
        stack.enter_context(patch.object(dspark_planner, name, value))
    return stack
