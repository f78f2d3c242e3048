"""Figures, comparisons, report and charts of the demo, from made-up runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from collective_counter import DraftFigures

from scripts.demo.charts import draw_charts
from scripts.demo.compare import compare_outputs, speedup
from scripts.demo.inputs import prompts_for
from scripts.demo.measure import ArmRun, Phase
from scripts.demo.report import build_report
from scripts.demo.settings import FLAG, Settings
from scripts.demo.table import render
from scripts.serving import Completion
from scripts.serving.models import check_tp
from scripts.serving.spread import Spread
from scripts.serving.status import find_draft_path

TOKENS = 6
BYTES = {"dense": 4000, "packed": 48}
SECONDS = {("dense", 1): 2.0, ("dense", 8): 4.0, ("packed", 1): 2.0, ("packed", 8): 3.0}


def settings(**changes) -> Settings:
    base = Settings(
        model_path=Path("model"),
        fork=Path("fork"),
        out=Path("out"),
        vocab_size=1000,
        order=("dense", "packed"),
        requests=(2, 8),
        rounds=1,
        output_tokens=TOKENS,
    )
    return dataclasses.replace(base, **changes)


def completion(index: int) -> Completion:
    return Completion([index] * TOKENS, 2.0, 3, 9, 0.5)


def phase(arm: str, concurrency: int, count: int, **changes) -> Phase:
    figures = DraftFigures(
        steps=10,
        collectives=10,
        output_bytes=BYTES[arm] * 40,
        rows=40,
        head_rows=20,
        ranks_agree=True,
    )
    values = {
        "concurrency": concurrency,
        "round": 0,
        "seconds": SECONDS[arm, concurrency],
        "completions": [completion(i) for i in range(count)],
        "figures": figures,
        "calls_by_scope": {"draft_logits": {"all_gather": 10}},
    }
    return Phase(**(values | changes))


def arm_run(arm: str, index: int = 0, **changes) -> ArmRun:
    phases = [phase(arm, 1, 2), phase(arm, 8, 8, **changes)]
    return ArmRun(arm, index, 30.0, 1000.0 + index, ["-m"], "0.5.23", None, phases)


def report(*runs: ArmRun, **changes) -> dict:
    hardware = {"cpu": "a CPU", "cores": 2}
    return build_report(settings(**changes), runs, hardware)


def test_fields_and_figures() -> None:
    """Red when a promised field is missing or a ratio is upside down."""
    made = report(arm_run("dense"), arm_run("packed", 1))
    for field in ("model", "tp", "num_steps", "vocab_size", "arms", "hardware"):
        assert field in made
    assert made["outputs_identical"] and made["sglang_version"] == "0.5.23"
    dense, packed = made["arms"]["dense"], made["arms"]["packed"]
    assert dense["output_tok_per_s"] == 8 * TOKENS / 4.0
    assert made["speedup"] == pytest.approx(4.0 / 3.0)
    assert made["speedup_by_concurrency"]["1"] == 1.0
    assert packed["draft_collective_bytes_per_token"] == 48
    assert packed["draft_collective_bytes_per_real_row"] == 96
    assert packed["draft_collective_bytes_per_proposed_token"] == 48 * 40 / 72
    assert packed["draft_collective_bytes_total"] == 48 * 40
    assert dense["draft_collectives_per_step"] == 1
    assert dense["accept_length"] == TOKENS / 3
    assert packed["peak_rss_mib"] == 1001 and dense["request_errors"] == 0
    assert all(made["checks"].values())
    assert json.loads(json.dumps(made)) == made


def test_median_over_starts() -> None:
    """Red when one slow start decides the headline figure."""
    runs = [arm_run("dense", i, seconds=s) for i, s in enumerate((4.0, 4.0, 40.0))]
    figures = report(*runs, arm_run("packed", 3))["arms"]["dense"]
    assert figures["output_tok_per_s"] == 12.0
    spread = figures["output_tok_per_s_by_concurrency"]["8"]
    assert (spread["min"], spread["max"], len(spread["samples"])) == (1.2, 12.0, 3)


def test_spread() -> None:
    """Red when the median of an even count is not the middle of two."""
    spread = Spread.of([4.0, 1.0, 3.0, 2.0])
    assert (spread.median, spread.min, spread.max) == (2.5, 1.0, 4.0)
    assert speedup(Spread.of([2.0]), Spread.of([3.0])) == 1.5
    with pytest.raises(ValueError):
        Spread.of([])


def different(index: int, **changes) -> list[Completion]:
    completions = [completion(i) for i in range(8)]
    completions[index] = dataclasses.replace(completions[index], **changes)
    return completions


def test_one_token_differs() -> None:
    """Red when a single differing token passes as identical."""
    wrong = different(5, output_ids=[5, 5, 5, 5, 5, 6])
    runs = [arm_run("dense"), arm_run("packed", 1, completions=wrong)]
    agreement = compare_outputs(runs)
    assert not agreement.identical and agreement.differing == [(8, 5)]
    made = report(*runs)
    assert made["outputs_identical"] is False
    assert made["checks"]["outputs_identical"] is False
    assert made["checks"]["accept_lengths_identical"] is True
    assert "checks failed: outputs_identical" in render(made)


def test_accept_length_differs() -> None:
    """Red when equal tokens hide another accept length."""
    wrong = different(0, accept_length=3.0)
    made = report(arm_run("dense"), arm_run("packed", 1, completions=wrong))
    assert made["outputs_identical"] and not made["accept_lengths_identical"]


def test_request_error() -> None:
    """Red when a failed request in both arms compares as equal."""
    failed = different(3, output_ids=[], error="HTTP 500")
    made = report(
        arm_run("dense", completions=failed), arm_run("packed", 1, completions=failed)
    )
    assert made["arms"]["packed"]["request_errors"] == 1
    assert not made["checks"]["no_request_errors"]
    assert not made["outputs_identical"]


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"collectives": 20}, "one_collective_per_draft_step"),
        ({"ranks_agree": False}, "ranks_agree"),
        ({"output_bytes": 4000 * 40}, "packed_gathers_less"),
    ],
)
def test_failed_checks(changes: dict, check: str) -> None:
    """Red when a packed arm that is not packed, or not alone, passes."""
    figures = dataclasses.replace(phase("packed", 8, 8).figures, **changes)
    made = report(arm_run("dense"), arm_run("packed", 1, figures=figures))
    assert [name for name, passed in made["checks"].items() if not passed] == [check]


def test_one_arm_only() -> None:
    """Red when a single arm needs the other one's figures."""
    made = report(arm_run("dense"), order=("dense",))
    assert made["speedup"] is None and list(made["arms"]) == ["dense"]
    assert "packed" not in render(made)


def test_table_and_charts(tmp_path: Path) -> None:
    """Red when a figure does not reach the reader."""
    made = report(arm_run("dense"), arm_run("packed", 1))
    text = render(made)
    for piece in ("12.0 (12.0 to 12.0)", "16.0", "4,000", "48", "1.33", "all checks"):
        assert piece in text
    paths = draw_charts(made, tmp_path)
    assert [path.name for path in paths] == ["throughput.png", "bytes.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_arms_differ_in_one_word() -> None:
    """Red when the arms are not run under the same conditions."""
    dense, packed = (settings().server_args(arm) for arm in ("dense", "packed"))
    differing = [(a, b) for a, b in zip(dense, packed, strict=True) if a != b]
    assert differing == [("off", "on")]
    assert dense[dense.index("off") - 1] == FLAG


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"order": ()}, "--order"),
        ({"requests": (2,)}, "requests"),
        ({"tp": 0}, "--tp"),
    ],
)
def test_bad_settings(changes: dict, names: str) -> None:
    """Red when settings that cannot work start a server."""
    with pytest.raises(ValueError, match=names):
        settings(**changes)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "fits"),
    [(8, 4, 4, True), (8, 2, 4, True), (8, 4, 3, False), (6, 4, 3, False)],
)
def test_heads_and_tp(heads: int, kv_heads: int, tp: int, fits: bool) -> None:
    """Red when heads that cannot be split pass, or replicated ones do not."""
    config = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    if fits:
        check_tp(config, tp)
        return
    with pytest.raises(ValueError, match=f"--tp {tp}"):
        check_tp(config, tp)


def test_prompts_of_any_model(tmp_path: Path) -> None:
    """Red when prompts change between runs or leave the vocabulary."""
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 50}))
    chosen = settings(model_path=tmp_path)
    prompts = prompts_for(chosen)
    assert prompts == prompts_for(chosen)
    assert len(prompts) == 8 and all(0 <= i < 50 for ids in prompts for i in ids)


def test_draft_path_in_server_info() -> None:
    """Red when the scheduler's state moves inside the answer."""
    status = {"path": "packed"}
    info = {"internal_states": [{"x": 1}, {"vocab_parallel_draft": status}]}
    assert find_draft_path(info) == status
    assert find_draft_path({"internal_states": [{}]}) is None
