"""Clients that go away, and a rank that stops for a while."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from engine_arms.client import Answer, ask, ask_streamed, open_stream
from engine_arms.scenarios import DISTURBED, body, gone, prompts, with_rids
from scripts.serving.processes import session_members

PAUSE_S = 2.0
_CHUNKS_BEFORE_LEAVING = 2


def leaving_clients(url: str) -> list[Answer]:
    """Answers of those who stay while others close their sockets midway."""
    leaving = with_rids("gone", gone())
    staying = with_rids("staying", DISTURBED["staying"])
    with ThreadPoolExecutor(len(leaving) + len(staying)) as pool:
        left = [pool.submit(_leave, url, item) for item in leaving]
        kept = [pool.submit(ask, url, item) for item in staying]
        for future in left:
            future.result()
        return [future.result() for future in kept]


def _leave(url: str, item: dict[str, Any]) -> None:
    with open_stream(url, item) as stream:
        for _ in range(_CHUNKS_BEFORE_LEAVING):
            next(stream)


def paused_rank(url: str, session: int, rank: int) -> list[Answer]:
    """Answers to a stream and three requests during which `rank` stands still."""
    name = f"paused{rank}"
    streamed, *others = with_rids(name, DISTURBED[name])
    with ThreadPoolExecutor(1 + len(others)) as pool:
        stream = pool.submit(ask_streamed, url, streamed)
        answers = [pool.submit(ask, url, item) for item in others]
        _wait_for_generation(url)
        pause(rank_process(session, rank), PAUSE_S)
        return [stream.result(), *(answer.result() for answer in answers)]


def _wait_for_generation(url: str) -> None:
    """Return once a request of its own has got its first tokens."""
    probe = body(prompts(1, 16, seed=40)[0], {"max_new_tokens": 8}, rid="probe")
    with open_stream(url, probe) as stream:
        next(stream)


def rank_process(session: int, rank: int) -> psutil.Process:
    """The scheduler process of a rank; LookupError when there is none."""
    title = f"sglang::scheduler_TP{rank}"
    for process in session_members(session):
        if " ".join(process.cmdline()).startswith(title):
            return process
    raise LookupError(f"no process {title} in session {session}")


def pause(process: psutil.Process, seconds: float) -> None:
    """Stop a process and let it go on, whatever happens meanwhile."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(process.pid, signal.SIGCONT)
