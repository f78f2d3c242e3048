"""What a rank measures for bench_transport.py: both steps, and the bare exchange."""

from typing import Any, Callable, Dict, List, NamedTuple

import torch
from sampling_layer_ranks import Limits, timed_pairs
from sampling_layer_report import spread
from selection_steps import (
    Case,
    Step,
    dense_step,
    of_rank_0,
    packed_step,
    random_shard,
)

from sglang.kernels.ops.speculative.shard_winner import padded_rows
from sglang.test.kits.tp_group_kit import transports

GRAPH_STEPS = 16
"""Steps in a captured graph: the gap between two replays is spread over them."""


class Timer(NamedTuple):
    """How steps run on a device."""

    prepare: Callable[[Step], Callable[[], object]]
    """Turns a step into what is timed."""
    steps_a_call: int
    finish: Callable[[], object]


def timer_of(group: Any, device: str) -> Timer:
    if device == "cpu":
        return Timer(lambda step: step, 1, lambda: None)
    return Timer(
        lambda step: captured(group, step), GRAPH_STEPS, torch.cuda.synchronize
    )


def captured(group: Any, step: Step) -> Callable[[], object]:
    """A CUDA graph of ``GRAPH_STEPS`` steps, captured as SGLang captures a draft."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with group.graph_capture() as context:
        with torch.cuda.graph(graph, stream=context.stream):
            for _ in range(GRAPH_STEPS):
                step()
    return graph.replay


def measure(
    group: Any, device: str, vocab: int, dtype: str, rows: List[int], limits: Limits
) -> Dict[str, List[Dict[str, Any]]]:
    """Times of every row count by transport, the same on every rank."""
    timer = timer_of(group, device)
    results: Dict[str, List[Dict[str, Any]]] = {}
    for count in rows:
        case = Case(count, vocab, dtype)
        shard = random_shard(group.rank_in_group, group.world_size, case, device)
        dense = dense_step(group, shard, vocab)
        expected = dense()
        for name, gather in transports(group, device).items():
            packed = packed_step(gather, shard, vocab)
            if not torch.equal(packed(), expected):
                raise RuntimeError(f"dense and packed ids differ: {case}, {name}")
            words = torch.zeros((3, padded_rows(count)), device=device)
            exchange = _exchange(gather, words)
            pairs = _slowest(group, timer, [dense, packed], limits)
            alone = _slowest(group, timer, [exchange, exchange], limits)
            results.setdefault(name, []).append(
                {
                    "rows": count,
                    "dense_us": spread([pair[0] for pair in pairs]),
                    "packed_us": spread([pair[1] for pair in pairs]),
                    "exchange_us": spread([min(pair) for pair in alone]),
                }
            )
    return of_rank_0([results])[0]


def _exchange(gather: Any, words: torch.Tensor) -> Step:
    return lambda: gather.gather_stacked(words)


def _slowest(
    group: Any, timer: Timer, steps: List[Step], limits: Limits
) -> List[List[float]]:
    """Microseconds of a step of either arm per pair: those of the slowest rank."""
    calls = [timer.prepare(step) for step in steps]
    _, pairs = timed_pairs(calls, limits, timer.finish)
    per_rank = group.all_gather_object(pairs)
    scale = 1e6 / timer.steps_a_call
    return [
        [scale * max(arm) for arm in zip(*pair_of_ranks)]
        for pair_of_ranks in zip(*per_rank)
    ]
