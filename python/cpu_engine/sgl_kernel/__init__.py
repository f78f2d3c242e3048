"""Torch stand-ins for the ops of SGLang's CPU build of `sgl_kernel`.

The compiled package is not on the package index. With this folder's parent first on
`PYTHONPATH`, `python -m sglang.launch_server --device cpu` runs on any x86-64 or Arm
CPU. `convert_weight_packed` is left out on purpose: its presence makes SGLang choose
the AMX code, so without it norms, activations and linear layers stay on native torch.
"""

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel import delta_rule, fused, mamba  # noqa: F401  (registers ops)
from sgl_kernel.draft import (
    build_draft_decode_metadata_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from sgl_kernel.kv_pool import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
)
from sgl_kernel.tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]
