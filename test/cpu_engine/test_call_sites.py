"""The stand-ins fit the calls in the installed SGLang, read from its source."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import sgl_kernel
import torch

SGLANG = Path(importlib.util.find_spec("sglang").origin).parent
BACKEND = SGLANG / "srt" / "layers" / "attention" / "intel_amx_backend.py"
FOLDERS = ["kernels/ops/speculative", "kernels/ops/kvcache", "srt/mem_cache"]


def trees(folders: list[str]) -> Iterator[tuple[Path, ast.Module]]:
    """Modules below the folders that mention `sgl_kernel`."""
    for folder in folders:
        for path in sorted((SGLANG / folder).rglob("*.py")):
            text = path.read_text()
            if "sgl_kernel" in text:
                yield path, ast.parse(text)


def calls(tree: ast.AST, names: set[str]) -> Iterator[tuple[str, ast.Call]]:
    """Calls of a bare name or an attribute in `names`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", None))
            if name in names:
                yield name, node


def imported(tree: ast.AST) -> dict[str, str]:
    """Local name -> name in `sgl_kernel`, for names that end in `_cpu`."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "sgl_kernel"
        for alias in node.names
        if alias.name.endswith("_cpu")
    }


def test_every_imported_function_exists_and_takes_its_call() -> None:
    """Red if SGLang renames, adds or reorders a CPU function around speculation."""
    seen = set()
    for path, tree in trees(FOLDERS):
        names = imported(tree)
        for local, call in calls(tree, set(names)):
            function = getattr(sgl_kernel, names[local])
            words = {word.arg: None for word in call.keywords}
            inspect.signature(function).bind(*call.args, **words)
            seen.add(names[local])
    assert seen >= {
        "assign_draft_cache_locs_contiguous_cpu",
        "assign_extend_cache_locs_cpu",
        "assign_req_to_token_pool_cpu",
        "build_tree_kernel_efficient_cpu",
        "copy_all_layer_kv_cache_cpu",
        "fill_accept_out_cache_loc_cpu",
        "fill_bonus_tokens_cpu",
        "rotate_input_ids_cpu",
        "verify_tree_greedy_cpu",
    }


def test_draft_metadata_call() -> None:
    """Red if the draft backend passes other arguments than the stand-in takes."""
    tree = ast.parse(BACKEND.read_text())
    ((_, call),) = calls(tree, {"build_draft_decode_metadata"})
    function = sgl_kernel.build_draft_decode_metadata_cpu
    assert [getattr(arg, "id", None) or arg.attr for arg in call.args] == list(
        inspect.signature(function).parameters
    )


# What the call passes, by its last name, where it is called otherwise in the schema.
SAME_ARGUMENT = {
    "scaling": "sm_scale",
    "is_cross_attention": "is_cross_attn",
    "max_extend_len": "max_len_extend",
    "cache_loc": "loc",
    "key_scale": "k_scale",
    "value_scale": "v_scale",
    "extend_seq_lens": "extend_seq_lens",
}
KEPT = {
    *SAME_ARGUMENT,
    *("req_to_token", "req_pool_indices", "seq_lens", "extend_start_loc"),
    *("logit_cap", "encoder_lens", "sinks", "tree_mask", "is_causal", "attn_logits"),
}


@pytest.mark.parametrize("kind", ["decode", "extend"])
def test_attention_call(kind: str) -> None:
    """Red if an argument is added to or moved in the backend's attention call."""
    op = getattr(torch.ops.sgl_kernel, f"{kind}_attention_cpu").default
    schema = [argument.name for argument in op._schema.arguments]
    tree = ast.parse(BACKEND.read_text())
    ((_, call),) = calls(tree, {f"{kind}_attention_fwd"})
    assert len(call.args) == len(schema)
    compared = 0
    for argument, name in zip(call.args, schema):
        passed = getattr(argument, "id", getattr(argument, "attr", None))
        if passed in KEPT:
            assert SAME_ARGUMENT.get(passed, passed) == name
            compared += 1
    assert compared >= 11


def test_amx_packing_is_not_offered() -> None:
    """Red if `convert_weight_packed` appears: SGLang would choose its AMX code."""
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
