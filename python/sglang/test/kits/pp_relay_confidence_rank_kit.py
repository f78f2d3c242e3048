"""A verify round's results through SGLang's pipeline relay, without a model.

The last stage's results are made up; what sends, receives, commits and rebuilds them is the
scheduler's, over its own pipeline and tensor groups.
"""

from types import SimpleNamespace
from typing import Any, Dict, List
from unittest.mock import patch

import torch

from sglang.srt.managers.scheduler_pp_mixin import PPBatchMetadata, SchedulerPPMixin
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import ForwardMode, PPProxyTensors
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.speculative import eagle_utils
from sglang.srt.speculative.pp_spec_relay import PPSpecRelayInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.test.kits.tp_group_kit import init_group

STEPS = 3
TP = 2
STAGES = 2


class Stage(SchedulerPPMixin):
    """What the relay reads of a scheduler."""

    _pp_spec_relay = True
    device = "cpu"

    def __init__(self, collects: bool = True, pp_group: Any = None) -> None:
        backend = SimpleNamespace(verify_mask=None)
        runner = SimpleNamespace(
            attn_backend=backend,
            sampling_observer=None,
            model_config=SimpleNamespace(context_len=64),
        )
        self.tp_worker = SimpleNamespace(model_runner=runner)
        self.model_worker = SimpleNamespace(
            draft_confidence_status={"collects": collects}
        )
        self.pp_group = pp_group or SimpleNamespace(is_first_rank=True)


def settings(**changed: Any) -> Any:
    """Arguments of a server that relays chains of ``STEPS`` drafts."""
    values = dict(
        speculative_algorithm="EAGLE",
        speculative_eagle_topk=1,
        speculative_num_steps=STEPS,
        speculative_num_draft_tokens=STEPS + 1,
        speculative_draft_confidence=True,
    )
    return get_context().override_server_args(**values | changed)


def microbatch(rids: str, spec_info: Any = None) -> SimpleNamespace:
    """A live batch of requests with one-letter ids."""
    lengths = torch.full((len(rids),), 9)
    return SimpleNamespace(
        reqs=[SimpleNamespace(rid=rid) for rid in rids],
        seq_lens=lengths,
        seq_lens_cpu=lengths.clone(),
        seq_lens_sum=9 * len(rids),
        spec_info=spec_info,
        forward_mode=ForwardMode.DECODE,
        spec_algorithm=SpeculativeAlgorithm.EAGLE,
        return_logprob=False,
        batch_size=lambda: len(rids),
    )


def chain_of(rid: str, turn: int) -> List[float]:
    """Probabilities of the chain that is drafted for a request in a turn: no two alike."""
    first = (ord(rid) - ord("a")) * 100 + turn * 10
    return [(first + step + 1) / 1024 for step in range(STEPS)]


def result_of(rids: str, turn: int, verified: torch.Tensor) -> GenerationBatchResult:
    """What the last stage has after verifying ``verified`` and drafting anew."""
    rows, width = len(rids), STEPS + 1
    return GenerationBatchResult(
        next_token_ids=torch.zeros(rows * width, dtype=torch.int64),
        accept_lens=torch.ones(rows, dtype=torch.int64),
        new_seq_lens=torch.full((rows,), 10),
        next_draft_input=SimpleNamespace(bonus_tokens=torch.arange(rows), topk_p=None),
        next_verify_chain=torch.arange(rows * width),
        next_verify_parent_list=torch.zeros(rows, STEPS, dtype=torch.int64),
        next_verify_top_scores_index=torch.zeros(rows, STEPS, dtype=torch.int64),
        draft_probability=verified,
        next_verify_probability=torch.tensor([chain_of(rid, turn) for rid in rids]),
    )


def degenerate(rids: str) -> PPSpecRelayInput:
    """What requests carry out of a prefill."""
    return PPSpecRelayInput.degenerate(list(rids), torch.arange(len(rids)), STEPS + 1)


def rebuilt(stage: Stage, batch: SimpleNamespace) -> Any:
    """The next round's verify input of a stage; the batch carries its relay again."""
    relay, width = batch.spec_info, STEPS + 1
    rows = len(batch.reqs)
    # The tree kernels of a CPU are another package's.
    tree = [torch.zeros(rows, width, dtype=torch.int64) for _ in range(5)]
    tree.append(torch.zeros(rows * width, dtype=torch.int64))
    with patch.object(
        eagle_utils, "build_tree_kernel_efficient", lambda *args, **options: tree
    ):
        stage._pp_spec_rebuild_verify_input(batch)
    verify_input, batch.spec_info = batch.spec_info, relay
    return verify_input


def rounds(rank: int, world_size: int) -> List[Dict[str, Any]]:
    """Two rounds of a microbatch whose requests change in between: what every stage saw.

    ``reported``: the result's probabilities after the ring; ``verifies``: those of the
    verify input that the stage rebuilds for the round after.
    """
    init_group(rank, world_size, rank, "cpu", stages=STAGES)
    group = get_parallel().pp_group
    stage, seen = Stage(pp_group=group), []
    with settings():
        batch = microbatch("abc", degenerate("abc"))
        for turn, then in enumerate(("cdab", "dc")):
            forward = microbatch("".join(req.rid for req in batch.reqs))
            verifies = rebuilt(stage, batch).draft_probability
            outputs = _through_the_ring(stage, forward, turn, verifies)
            batch = _recomposed(batch, then)
            metadata = PPBatchMetadata(can_run_cuda_graph=False, fwd_batch=forward)
            result = stage._pp_prep_batch_result(batch, metadata, outputs)
            seen.append(
                {
                    "verified": verifies.tolist(),
                    "reported": result.draft_probability.tolist(),
                    "verifies": rebuilt(stage, batch).draft_probability.tolist(),
                }
            )
    return seen


def _recomposed(batch: SimpleNamespace, rids: str) -> SimpleNamespace:
    """The batch after requests left or came, which happens before the result is back."""
    relay = batch.spec_info
    here = relay.rids
    relay.filter_batch(torch.tensor([here.index(r) for r in rids if r in here]))
    relay.merge_batch(degenerate("".join(r for r in rids if r not in here)))
    return microbatch(rids, relay)


def _through_the_ring(
    stage: Stage, forward: SimpleNamespace, turn: int, verified: torch.Tensor
) -> PPProxyTensors:
    """From the last stage to the first, and on to the last."""
    group, tp_group = stage.pp_group, get_parallel().tp_group
    if not group.is_last_rank:
        tensors = group.recv_tensor_dict(all_gather_group=tp_group)
        group.send_tensor_dict(dict(tensors), all_gather_group=tp_group)
        return PPProxyTensors(tensors)
    rids = "".join(req.rid for req in forward.reqs)
    result = result_of(rids, turn, verified)
    sent = stage._pp_prepare_tensor_dict(result, forward)
    group.send_tensor_dict(sent, all_gather_group=tp_group)
    return PPProxyTensors(group.recv_tensor_dict(all_gather_group=tp_group))
