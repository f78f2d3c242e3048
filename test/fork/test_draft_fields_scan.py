"""Every place in SGLang that rebuilds or slices a draft's output carries its fields.

Packed logits are one column wide: an output rebuilt without its token ids would turn
every row into token 0. The scan finds each call that builds a ``LogitsProcessorOutput``
(or replaces its logits) and each slice of ``next_token_logits``, and wants our helper in
the same function. What cannot hold a packed output is listed with its reason.
"""

import ast
from pathlib import Path

import pytest

SRT = Path(__file__).resolve().parents[2] / "build" / "fork" / "sglang" / "srt"
HELPERS = {"draft_fields", "select_draft_fields"}

DENSE_WORKER = "a worker without packed sites: its processor is never packed"

REVIEWED = {
    "beam_search/logits_capture.py:capture_pre_sample_logits": (
        "the target's output, which is never packed"
    ),
    "layers/logits_processor.py:forward": (
        "the dense branches; the packed one returns before them"
    ),
    "layers/vocab_parallel_draft.py:logits_output": "builds the packed output itself",
    "models/gemma4_mtp.py:_centroid_logits_processor": (
        "a model's own output, not from a logits processor that can be packed"
    ),
    "models/mindspore.py:forward": "MindSpore models compute their own logits",
    "speculative/frozen_kv_mtp_worker_v2.py:draft_forward": DENSE_WORKER,
    "speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py:"
    "_select_step_logits": "dense arms; _compute_topk returns before them when packed",
    "speculative/multi_layer_eagle_worker_v2.py:_draft_extend_for_decode": (
        "seed_topk selects the rows of all fields beside the slice, which dense reads"
    ),
}


def rebuilds(node: ast.AST) -> bool:
    """Whether the node builds an output with logits, or slices logits."""
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func).rpartition(".")[2]
        logits = [k.value for k in node.keywords if k.arg == "next_token_logits"]
        if called == "LogitsProcessorOutput":
            return not (logits and ast.unparse(logits[0]) == "None")
        return called == "replace" and bool(logits)
    return (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "next_token_logits"
    )


def functions(tree: ast.Module) -> list[ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def unserved(source: str) -> list[str]:
    """Names of functions that rebuild an output and do not call our helper."""
    found = []
    for function in functions(ast.parse(source)):
        nodes = list(ast.walk(function))
        calls = {
            ast.unparse(node.func).rpartition(".")[2]
            for node in nodes
            if isinstance(node, ast.Call)
        }
        if any(map(rebuilds, nodes)) and not calls & HELPERS:
            found.append(function.name)
    return found


def scan() -> set[str]:
    """``file:function`` of every place that our helper does not serve."""
    files = ((path, path.read_text("utf-8")) for path in sorted(SRT.rglob("*.py")))
    return {
        f"{path.relative_to(SRT).as_posix()}:{function}"
        for path, text in files
        if "next_token_logits" in text or "LogitsProcessorOutput(" in text
        for function in unserved(text)
    }


@pytest.fixture(scope="module")
def found() -> set[str]:
    return scan()


def test_every_place_is_served_or_reviewed(found: set[str]) -> None:
    """Red when SGLang rebuilds the output in a new place, or an edit is lost."""
    new = found - set(REVIEWED)
    assert not new, f"carry draft_fields() there, or review it: {sorted(new)}"


def test_no_reviewed_place_is_gone(found: set[str]) -> None:
    """Red when a reviewed place no longer rebuilds an output."""
    assert not set(REVIEWED) - found


@pytest.mark.parametrize(
    "file",
    [
        "hardware_backend/npu/graph_runner/npu_graph_runner.py",
        "model_executor/cpu_graph_runner.py",
        "model_executor/forward_batch_info.py",
        "model_executor/runner/decode_cuda_graph_runner.py",
        "model_executor/runner/prefill_cuda_graph_runner.py",
        "speculative/eagle_draft_extend_cuda_graph_runner.py",
        "speculative/eagle_worker_v2.py",
        "speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py",
    ],
)
def test_a_lost_edit_is_found(file: str) -> None:
    """Red when the scan would not notice that this file lost its edit."""
    text = (SRT / file).read_text("utf-8")
    lost = text.replace("draft_fields(", "other_fields(")
    assert lost != text
    assert set(unserved(lost)) > set(unserved(text))
