"""Winner and log-sum-exp of a vocabulary shard, and their merge over ranks.

Greedy drafting under tensor parallelism needs three 32-bit words a row from every
rank instead of the rank's logits: the shard's largest logit, its log-sum-exp, and
the global id of that logit. ``shard_winner`` makes the words, an all-gather
exchanges them, and ``merge_shard_winners`` turns the gathered words into the global
token id, its logit, and the log-sum-exp over the whole vocabulary.

The layout is word-major, ``[3, rows_padded]`` FP32, because a transport may want
rows of a multiple of 16 bytes. Word 2 holds int32 bits and is never used as a
number. The implementations are ``shard_winner_torch.py`` and
``shard_winner_triton.py``. This module and they import torch and Triton only, so that
they also run where SGLang is not installed.
"""

from types import ModuleType
from typing import Optional, Tuple

import torch

from . import shard_winner_torch

ROW_ALIGNMENT = 4
"""Rows are padded to this multiple: 4 FP32 words are one 16-byte vector."""

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
        k: winners a row; only 1 is implemented.
        impl: ``None`` chooses by device, ``"torch"`` or ``"triton"`` forces one.

    Returns:
        FP32 ``[3, padded_rows(rows)]``: largest logit, log-sum-exp, id bits. Ties go
        to the smallest id, NaN never beats a number, and a row without a finite or
        +inf value has value -inf and the shard's smallest id, so that word 0 is never
        NaN. Log-sum-exp is NaN where the row holds a NaN. Words of padding rows are
        zero.

    Raises:
        ValueError: a shape, dtype, range or option that is not supported.
    """
    _check_shard(logits, valid_width, vocab_start, k, impl)
    return _implementation(logits.device, impl).reduce_shard(
        logits,
        valid_width=valid_width,
        vocab_start=vocab_start,
        softcap=softcap,
        rows_padded=padded_rows(logits.shape[0]),
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
        gathered: FP32 ``[tp * 3, rows_padded]``, rank-major.
        rows: real rows, at most ``rows_padded``.
        vocab_size: ids are clamped to ``[0, vocab_size)``.
        k: winners a row; only 1 is implemented.
        draft_tokens: int64 ``[rows, columns]``; the ids go to ``column``, in place.
        column: column of ``draft_tokens``.
        positions: int64 ``[rows]``; advanced by one, in place.
        impl: ``None`` chooses by device, ``"torch"`` or ``"triton"`` forces one.

    Returns:
        Token ids int64 ``[rows]``, their logits FP32 ``[rows]`` and the log-sum-exp
        over the vocabulary FP32 ``[rows]``. A zero logit is returned as +0.0, since
        a transport may turn one zero into the other.

    Raises:
        ValueError: a shape, dtype or option that is not supported.
    """
    _check_gathered(gathered, rows, k, impl)
    _check_destinations(rows, draft_tokens, column, positions)
    return _implementation(gathered.device, impl).merge_words(
        gathered,
        rows=rows,
        last_id=(_MAX_VOCAB if vocab_size is None else vocab_size) - 1,
        draft_tokens=draft_tokens,
        column=column,
        positions=positions,
    )


def _implementation(device: torch.device, impl: Optional[str]) -> ModuleType:
    """The module that does the work; Triton is imported when it is needed."""
    if impl == "torch" or (impl is None and device.type != "cuda"):
        return shard_winner_torch
    from . import shard_winner_triton

    return shard_winner_triton


def _check_impl(k: int, impl: Optional[str]) -> None:
    if k != 1:
        raise ValueError(f"k={k}: only k=1 is implemented")
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
            "gathered must be FP32 [tp * 3, rows_padded], got "
            f"{gathered.dtype} {tuple(gathered.shape)}"
        )
    if gathered.shape[0] == 0 or gathered.shape[0] % 3:
        raise ValueError(
            f"gathered must hold 3 words a rank, got {gathered.shape[0]} words"
        )
    if not 0 <= rows <= gathered.shape[1]:
        raise ValueError(f"rows={rows} is outside [0, {gathered.shape[1]}]")


def _check_destinations(
    rows: int,
    draft_tokens: Optional[torch.Tensor],
    column: int,
    positions: Optional[torch.Tensor],
) -> None:
    """What is written in place has to hold ``rows`` rows: a kernel would not notice."""
    if draft_tokens is not None:
        held, columns = draft_tokens.shape
        if held < rows or not 0 <= column < columns:
            raise ValueError(
                f"draft_tokens {tuple(draft_tokens.shape)} has no column {column} of "
                f"{rows} rows"
            )
    if positions is not None and positions.shape[0] < rows:
        raise ValueError(f"positions holds {positions.shape[0]} of {rows} rows")
