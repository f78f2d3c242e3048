"""Requests to `/generate`, one at a time or several at once."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


class RequestFailed(RuntimeError):
    """A request that got no completion; the message says why."""


@dataclass(frozen=True)
class Completion:
    """Answer to one request. On failure `error` is set and the rest is empty.

    `accept_length` includes the bonus token; it and the two counts are None without
    speculative decoding. `correct_histogram[n]` counts the rounds in which `n` drafts
    were correct. The last three are there with `--speculative-draft-confidence`.
    """

    output_ids: list[int]
    accept_length: float | None
    verify_rounds: int | None
    proposed_drafts: int | None
    latency_s: float
    error: str | None = None
    correct_histogram: list[int] | None = None
    draft_confidence: float | None = None
    expected_accept_length: float | None = None
    verified_tokens: int | None = None


def post_json(url: str, body: dict[str, Any], timeout_s: float) -> Any:
    """POST and decode; RequestFailed for anything but a 200 with JSON."""
    request = urllib.request.Request(
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        detail = error.read(500).decode(errors="replace")
        raise RequestFailed(f"HTTP {error.code}: {detail}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error


def get_json(url: str, timeout_s: float = 30.0) -> Any:
    """GET and decode; RequestFailed for anything but a 200 with JSON."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return json.load(response)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from error


def complete(
    url: str,
    prompt: Sequence[int] | str,
    max_new_tokens: int,
    timeout_s: float = 300.0,
    **sampling: Any,
) -> Completion:
    """Greedy completion of exactly `max_new_tokens` tokens; RequestFailed if not.

    `prompt` is text or token ids.
    """
    text = isinstance(prompt, str)
    body = {
        ("text" if text else "input_ids"): prompt if text else list(prompt),
        "sampling_params": {
            "temperature": 0,
            "max_new_tokens": max_new_tokens,
            "ignore_eos": True,
        }
        | sampling,
    }
    start = time.perf_counter()
    answer = post_json(f"{url}/generate", body, timeout_s)
    latency_s = time.perf_counter() - start
    meta = answer["meta_info"]
    output_ids = answer["output_ids"]
    if len(output_ids) != max_new_tokens:
        raise RequestFailed(
            f"{len(output_ids)} of {max_new_tokens} tokens: {meta['finish_reason']}"
        )
    return Completion(
        output_ids=output_ids,
        accept_length=meta.get("spec_accept_length"),
        verify_rounds=meta.get("spec_verify_ct"),
        proposed_drafts=meta.get("spec_num_proposed_drafts"),
        latency_s=latency_s,
        correct_histogram=meta.get("spec_correct_drafts_histogram"),
        draft_confidence=meta.get("spec_draft_confidence"),
        expected_accept_length=meta.get("spec_expected_accept_length"),
        verified_tokens=meta.get("spec_num_verified_tokens"),
    )


def complete_all(
    url: str,
    prompts: Sequence[Sequence[int] | str],
    max_new_tokens: int,
    concurrency: int,
    timeout_s: float = 300.0,
) -> list[Completion]:
    """Completions in the order of the prompts, `concurrency` requests in flight.
    A failed request is recorded, not raised."""

    def one(prompt: Sequence[int] | str) -> Completion:
        start = time.perf_counter()
        try:
            return complete(url, prompt, max_new_tokens, timeout_s)
        except RequestFailed as failure:
            latency_s = time.perf_counter() - start
            return Completion([], None, None, None, latency_s, error=str(failure))

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, prompts))
