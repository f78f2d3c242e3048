"""Times and memory of steps on one GPU. Imports torch only."""

import platform
import statistics
from typing import Any, Callable, Dict

import torch

Step = Callable[[], object]

REPEATS = 60
FLUSH_BYTES = 512 << 20
"""More than the L2 cache of any GPU: writing it leaves nothing else there."""
COPY_BYTES = 1 << 30


def graph_of(step: Step) -> torch.cuda.CUDAGraph:
    """The step, captured after a warm-up on a side stream."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def timed(step: Step, flush: torch.Tensor) -> Dict[str, float]:
    """Microseconds of a captured step with a cold L2: median, 10th, 90th percentile."""
    graph = graph_of(step)
    marks = []
    for _ in range(REPEATS):
        flush.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        marks.append((start, end))
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(end) * 1e3 for start, end in marks)
    deciles = statistics.quantiles(times, n=10)
    return {"median_us": statistics.median(times), "p10": deciles[0], "p90": deciles[8]}


def copy_rate(flush: torch.Tensor) -> float:
    """Bytes a second of a device-to-device copy, read and written."""
    source = torch.zeros(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    time = timed(lambda: target.copy_(source), flush)
    return 2 * COPY_BYTES / (time["median_us"] * 1e-6)


def peak_bytes(step: Step) -> Dict[str, int]:
    """Memory that one step needs beside its inputs.

    ``temporary_bytes``: the most that is allocated at a time when it runs eagerly;
    ``graph_pool_bytes``: what the allocator reserves for its graph's own pool.
    """
    step()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    temporary = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    pool = torch.cuda.memory_reserved() - reserved
    del graph
    torch.cuda.empty_cache()
    return {"temporary_bytes": temporary, "graph_pool_bytes": pool}


def hardware() -> Dict[str, Any]:
    import triton

    card = torch.cuda.get_device_properties(0)
    return {
        "name": card.name,
        "capability": f"{card.major}.{card.minor}",
        "multiprocessors": card.multi_processor_count,
        "memory_bytes": card.total_memory,
        "host": platform.machine(),
        "torch": str(torch.__version__),
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }
