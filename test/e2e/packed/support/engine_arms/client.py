"""Requests whose whole answer is kept: JSON, errors, and streams chunk by chunk."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from scripts.serving.client import RequestFailed, post_json

# No request here takes more than a few seconds on two cores.
TIMEOUT_S = 60.0
# What an arm may not change; times, ids of workers and the like are left out.
KEPT_META = (
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "input_token_logprobs",
    "output_token_logprobs",
    "input_top_logprobs",
    "output_top_logprobs",
)
_SPEC = "spec_"

Answer = dict[str, Any]


def ask(url: str, body: dict[str, Any]) -> Answer:
    """The answer as `keep` leaves it, or `{"error": text}`."""
    try:
        return keep(post_json(f"{url}/generate", body, TIMEOUT_S))
    except RequestFailed as failure:
        return {"error": str(failure)}


def ask_all(url: str, bodies: Sequence[dict], concurrency: int) -> list[Answer]:
    """Answers in the order of the bodies, `concurrency` requests in flight."""
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda body: ask(url, body), bodies))


def keep(answer: dict[str, Any]) -> Answer:
    """Text, ids and the parts of `meta_info` that do not depend on time."""
    meta = answer["meta_info"]
    kept = {
        key: value
        for key, value in meta.items()
        if key in KEPT_META or key.startswith(_SPEC)
    }
    return {"text": answer.get("text"), "output_ids": answer["output_ids"], **kept}


@contextmanager
def open_stream(url: str, body: dict[str, Any]) -> Iterator[Iterator[dict]]:
    """Chunks of a streamed answer as they come. Leaving the block closes the socket,
    whatever is still to come."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(
        parts.hostname, parts.port, timeout=TIMEOUT_S
    )
    try:
        payload = json.dumps(body | {"stream": True})
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/generate", payload, headers)
        response = connection.getresponse()
        if response.status != 200:
            raise RequestFailed(f"HTTP {response.status}: {response.read(500)!r}")
        yield _chunks(response)
    finally:
        connection.close()


def _chunks(response: http.client.HTTPResponse) -> Iterator[dict]:
    for line in response:
        text = line.decode().strip()
        if text == "data: [DONE]":
            return
        if text.startswith("data: "):
            yield json.loads(text.removeprefix("data: "))


def ask_streamed(url: str, body: dict[str, Any]) -> Answer:
    """The last chunk's answer with `chunk_ids` (the ids of every chunk) and
    `longest_gap_s`, the longest wait between two chunks."""
    try:
        with open_stream(url, body) as stream:
            chunks, times = [], []
            for chunk in stream:
                chunks.append(chunk)
                times.append(time.monotonic())
    except RequestFailed as failure:
        return {"error": str(failure)}
    gaps = [later - sooner for sooner, later in zip(times, times[1:])]
    return {
        **keep(chunks[-1]),
        "chunk_ids": [chunk["output_ids"] for chunk in chunks],
        "longest_gap_s": max(gaps, default=0.0),
    }
