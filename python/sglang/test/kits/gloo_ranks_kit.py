"""Runs a function on several gloo ranks of this machine and returns every result."""

import multiprocessing
import os
import tempfile
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, Callable, List

import torch
import torch.distributed as dist


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 120,
    threads: int = 1,
) -> List[Any]:
    """``function(rank, world_size, *args)`` on every rank of a gloo group.

    ``function`` is a function of an importable module (not of a test file), its
    arguments and results are picklable and hold no tensors. The ranks are forked from
    a server that has imported that module once.

    Raises:
        RuntimeError: a rank failed (with its traceback) or gave no result in time.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        ranks = []
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            setup = (rank, world_size, store, timeout_s, threads)
            process = context.Process(
                target=_rank_main, args=(sender, setup, function, args), daemon=True
            )
            process.start()
            sender.close()
            ranks.append((process, receiver))
        try:
            return [_receive(rank, *pair, timeout_s) for rank, pair in enumerate(ranks)]
        finally:
            for process, _ in ranks:
                process.join(5)
                if process.is_alive():
                    process.kill()


def take_cpu_paths() -> None:
    """SGLang's groups and logits processors of this process work on a CPU.

    They do so with ``SGLANG_USE_CPU_ENGINE=1``, which also asks for the CPU build of
    ``sgl_kernel``; otherwise they take operators that only accelerators have.
    """
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers import dp_attention, logits_processor

    parallel_state._is_cpu = logits_processor._is_cpu = True
    dp_attention.memcpy_func = dp_attention.memcpy_cpu


def _receive(
    rank: int,
    process: multiprocessing.process.BaseProcess,
    receiver: Connection,
    timeout_s: float,
) -> Any:
    if not receiver.poll(timeout_s):
        raise RuntimeError(f"rank {rank} gave no result within {timeout_s} s")
    try:
        ok, result = receiver.recv()
    except EOFError:
        process.join(5)
        raise RuntimeError(f"rank {rank} exited with {process.exitcode}") from None
    if not ok:
        raise RuntimeError(f"rank {rank} failed:\n{result}")
    return result


def _rank_main(sender: Connection, setup, function: Callable, args: tuple) -> None:
    rank, world_size, store, timeout_s, threads = setup
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(threads)
    try:
        dist.init_process_group(
            "gloo",
            init_method=store,
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        result = function(rank, world_size, *args)
        dist.barrier()
        dist.destroy_process_group()
        sender.send((True, result))
    except Exception:
        sender.send((False, traceback.format_exc()))
