"""Linear attention (Qwen3.5) on the CPU: two places that SGLang sends to Triton."""

from __future__ import annotations

from typing import Any

import torch


def use_cpu_linear_attention() -> None:
    """Point both places at torch code, in this process.

    The gated norm asks for AMX before it calls its CPU op, which the stand-ins have
    without AMX; the state scatter after a verify refuses CPU tensors.
    """
    from sglang.kernels.ops.attention.fla import layernorm_gated
    from sglang.srt.layers.attention import hybrid_linear_attn_backend as backend

    for module, name in (
        (layernorm_gated, "_use_cpu"),
        (backend, "scatter_mamba_states_after_mtp_verify"),
    ):
        if not hasattr(module, name):
            raise AttributeError(
                f"{module.__name__}.{name} is gone; the CPU engine replaces it, see "
                f"cpu_linear_attention.py"
            )
    layernorm_gated._use_cpu = True
    backend.scatter_mamba_states_after_mtp_verify = scatter_verified_states


def scatter_verified_states(
    caches: Any,
    slots: torch.Tensor,
    last_steps: torch.Tensor,
    track_slots: torch.Tensor | None,
    track_steps: torch.Tensor | None,
    src_indices_raw: torch.Tensor | None = None,
) -> None:
    """Keep, of the states that a verify left behind every token, the accepted one.

    Request i's state behind step `last_steps[i]` goes to `slots[i]`; the same for the
    track slots, if any. Request i's row among the kept states is `src_indices_raw[i]`,
    or i.
    """
    pairs = [(caches.temporal, caches.intermediate_ssm)]
    pairs += zip(caches.conv, caches.intermediate_conv_window)
    targets = [(slots, last_steps)]
    if track_slots is not None:
        targets.append((track_slots, track_steps))
    for states, kept in pairs:
        if states.numel() == 0:
            continue
        for where, steps in targets:
            copy_states(states, kept, where, steps, src_indices_raw)


def copy_states(
    states: torch.Tensor,
    kept: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    rows: torch.Tensor | None = None,
) -> None:
    """`states[:, slots[i]] = kept[:, rows[i], steps[i]]` where slot and step are >= 0.

    `states` `[layers, slots, ...]`, `kept` `[layers, rows, steps, ...]`.
    """
    slots, steps = slots[: steps.numel()].long(), steps.long()
    rows = torch.arange(steps.numel()) if rows is None else rows.long()
    real = (slots >= 0) & (steps >= 0)
    states[:, slots[real]] = kept[:, rows[real], steps[real]].to(states.dtype)
