"""Winner and log-sum-exp of a vocabulary shard, and their merge over ranks.

Greedy drafting under tensor parallelism needs three 32-bit words a row from every
rank instead of the rank's logits: the shard's largest logit, its log-sum-exp, and
the global id of that logit. ``shard_winner`` makes the words, an all-gather
exchanges them, and ``merge_shard_winners`` turns the gathered words into the global
token id, its logit, and the log-sum-exp over the whole vocabulary.

A draft tree needs the ``k`` best of every row: ``k`` logits and ``k`` ids, and still
one log-sum-exp.

The layout is word-major, ``[2 * k + 1, rows_padded]`` FP32, because a transport may
want rows of a multiple of 16 bytes. The id words hold int32 bits and are never used as
numbers. The implementations are ``shard_winner_torch.py`` and
``shard_winner_triton.py``, for ``k`` > 1 ``shard_topk_torch.py`` and
``shard_topk_triton.py``. This module and they import torch and Triton only, so that
they also run where SGLang is not installed.
"""

from types import ModuleType
from typing import Dict, Optional, Tuple

import torch

from . import shard_topk_torch, shard_winner_few_rows, shard_winner_torch

ROW_ALIGNMENT = 4
"""Rows are padded to this multiple: 4 FP32 words are one 16-byte vector."""

MAX_K = 16
"""Most winners of a row: what a program of the Triton kernel keeps in registers."""

_MAX_VOCAB = 2**31 - 1


def padded_rows(rows: int) -> int:
    """Rows of the packed words for ``rows`` rows of logits."""
    return -(-rows // ROW_ALIGNMENT) * ROW_ALIGNMENT


def shard_winner(
    logits: torch.Tensor,
    *,
    valid_width: int,
    vocab_start: int,
    softcap: Optional[float] = None,
    k: int = 1,
    impl: Optional[str] = None,
) -> torch.Tensor:
    """Reduce a vocabulary shard to packed words.

    Args:
        logits: ``[rows, width]`` bf16, fp16 or fp32, any row stride, unit column
            stride.
        valid_width: columns at and past it are ignored (padding); 0 for an empty
            shard.
        vocab_start: global id of column 0.
        softcap: if given, ``softcap * tanh(x / softcap)`` in FP32 comes first.
        k: winners a row, at most ``MAX_K``.
        impl: ``None`` chooses by device, ``"torch"`` or ``"triton"`` forces one.

    Returns:
        FP32 ``[2 * k + 1, padded_rows(rows)]``: the ``k`` largest logits, log-sum-exp,
        their id bits. Larger logits come first, equal ones by id, smallest first. A NaN
        counts as -inf, so that no value word is NaN, and a row without a finite or +inf
        value has value -inf and the shard's smallest ids. What a shard narrower than
        ``k`` lacks has value -inf and an id behind all others. Log-sum-exp is NaN where
        the row holds a NaN. Words of padding rows are zero.

    Raises:
        ValueError: a shape, dtype, range or option that is not supported.
    """
    _check_shard(logits, valid_width, vocab_start, k, impl)
    if softcap is not None and not abs(softcap) > 0:
        raise ValueError(f"softcap={softcap}: None says that there is no cap")
    rows_padded = padded_rows(logits.shape[0])
    shard = dict(vocab_start=vocab_start, softcap=softcap, rows_padded=rows_padded)
    if impl is None and shard_winner_few_rows.takes(
        logits, logits.shape[0], k, valid_width
    ):
        return shard_winner_few_rows.reduce_rows(logits[:, :valid_width], **shard)
    return _implementation(logits.device, impl, k).reduce_shard(
        logits, valid_width=valid_width, **shard, **_winners_option(k)
    )


def merge_shard_winners(
    gathered: torch.Tensor,
    *,
    rows: int,
    vocab_size: Optional[int] = None,
    k: int = 1,
    draft_tokens: Optional[torch.Tensor] = None,
    column: int = 0,
    positions: Optional[torch.Tensor] = None,
    impl: Optional[str] = None,
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Merge the packed words of all ranks, in rank order.

    Args:
        gathered: FP32 ``[tp * (2 * k + 1), rows_padded]``, rank-major.
        rows: real rows, at most ``rows_padded``.
        vocab_size: ids are clamped to ``[0, vocab_size)``.
        k: winners a row, as the words were made for; at most ``vocab_size``.
        draft_tokens: int64 ``[rows, columns]``; the ids go to ``column``, in place.
            Only with ``k`` = 1.
        column: column of ``draft_tokens``.
        positions: int64 ``[rows]``; advanced by one, in place.
        impl: ``None`` chooses by device, ``"torch"`` or ``"triton"`` forces one.

    Returns:
        Token ids int64, their logits FP32 and the log-sum-exp over the vocabulary
        FP32, each ``[rows]``; with ``k`` > 1 the first two are ``[rows, k]``, in the
        order of ``shard_winner``. A zero logit is returned as +0.0, since a transport
        may turn one zero into the other.

    Raises:
        ValueError: a shape, dtype or option that is not supported.
    """
    vocab_size = _MAX_VOCAB if vocab_size is None else vocab_size
    _check_gathered(gathered, rows, k, impl)
    _check_destinations(rows, draft_tokens, column, positions)
    if vocab_size > _MAX_VOCAB:
        raise ValueError(f"vocab_size={vocab_size} leaves the int32 range of ids")
    if k > vocab_size:
        raise ValueError(f"k={k}: there are {vocab_size} tokens to choose from")
    if k > 1 and draft_tokens is not None:
        raise ValueError(f"k={k}: draft_tokens has room for k=1 only")
    destinations = dict(positions=positions)
    if draft_tokens is not None:
        destinations |= dict(draft_tokens=draft_tokens, column=column)
    few_rows = impl is None and shard_winner_few_rows.takes(gathered, rows, k)
    implementation = _implementation(gathered.device, impl, k)
    merge = (
        shard_winner_few_rows.merge_words if few_rows else implementation.merge_words
    )
    return merge(
        gathered,
        rows=rows,
        last_id=vocab_size - 1,
        **destinations,
        **_winners_option(k),
    )


def _implementation(device: torch.device, impl: Optional[str], k: int) -> ModuleType:
    """The module that does the work; Triton is imported when it is needed."""
    if impl == "torch" or (impl is None and device.type != "cuda"):
        return shard_winner_torch if k == 1 else shard_topk_torch
    from . import shard_topk_triton, shard_winner_triton

    return shard_winner_triton if k == 1 else shard_topk_triton


def _winners_option(k: int) -> Dict[str, int]:
    return {} if k == 1 else {"k": k}


def _check_impl(k: int, impl: Optional[str]) -> None:
    if not 1 <= k <= MAX_K:
        raise ValueError(f"k={k}: 1 to {MAX_K} winners a row are implemented")
    if impl not in (None, "torch", "triton"):
        raise ValueError(f"impl={impl!r}: use None, 'torch' or 'triton'")


def _check_shard(
    logits: torch.Tensor,
    valid_width: int,
    vocab_start: int,
    k: int,
    impl: Optional[str],
) -> None:
    _check_impl(k, impl)
    if logits.dim() != 2 or (logits.shape[1] > 1 and logits.stride(1) != 1):
        raise ValueError(
            "logits must be [rows, width] with unit column stride, got shape "
            f"{tuple(logits.shape)} and strides {logits.stride()}"
        )
    if logits.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise ValueError(f"logits must be bf16, fp16 or fp32, got {logits.dtype}")
    if not 0 <= valid_width <= logits.shape[1]:
        raise ValueError(f"valid_width={valid_width} is outside [0, {logits.shape[1]}]")
    if not 0 <= vocab_start <= _MAX_VOCAB - valid_width:
        raise ValueError(f"vocab_start={vocab_start} leaves the int32 range of ids")


def _check_gathered(
    gathered: torch.Tensor, rows: int, k: int, impl: Optional[str]
) -> None:
    _check_impl(k, impl)
    if gathered.dim() != 2 or gathered.dtype != torch.float32:
        raise ValueError(
            f"gathered must be FP32 [tp * {2 * k + 1}, rows_padded], got "
            f"{gathered.dtype} {tuple(gathered.shape)}"
        )
    words = gathered.shape[0]
    if words == 0 or words % (2 * k + 1):
        raise ValueError(f"gathered must hold {2 * k + 1} words a rank, got {words}")
    if not 0 <= rows <= gathered.shape[1]:
        raise ValueError(f"rows={rows} is outside [0, {gathered.shape[1]}]")


def _check_destinations(
    rows: int,
    draft_tokens: Optional[torch.Tensor],
    column: int,
    positions: Optional[torch.Tensor],
) -> None:
    """What is written in place has to hold ``rows`` rows: a kernel would not notice."""
    for name, buffer, dim in (
        ("draft_tokens", draft_tokens, 2),
        ("positions", positions, 1),
    ):
        if buffer is not None and (buffer.dim() != dim or not _is_integer(buffer)):
            raise ValueError(
                f"{name} must be an integer tensor of {dim} dimensions, got "
                f"{buffer.dtype} {tuple(buffer.shape)}"
            )
    if draft_tokens is not None:
        held, columns = draft_tokens.shape
        if held < rows or not 0 <= column < columns:
            raise ValueError(
                f"draft_tokens {tuple(draft_tokens.shape)} has no column {column} of "
                f"{rows} rows"
            )
    if positions is not None and positions.shape[0] < rows:
        raise ValueError(f"positions holds {positions.shape[0]} of {rows} rows")


def _is_integer(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32)
