"""Report, diagrams and temperatures, from shards alone and from arms that never ran."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

from scripts.calibrate import __main__ as program
from scripts.calibrate import inputs, measure
from scripts.calibrate.measure import ArmRun, Prompt, Round
from scripts.calibrate.pairs import Pairs
from scripts.calibrate.policy import policy_figures
from scripts.calibrate.positions import fit_positions
from scripts.calibrate.report import build_report
from scripts.calibrate.settings import Settings
from scripts.calibrate.table import render
from scripts.serving import Completion, RequestFailed, ServerCommand
from sglang.srt.speculative.draft_confidence import load_temperatures

HARDWARE = {"cpu": "a processor", "cores": 2}
PROMPTS = [Prompt([1], "easy"), Prompt([2], "hard")]
# Output ids and verified tokens of the two prompts, round after round.
ROUNDS = {
    "fixed": [([5, 6], 40), ([7, 8], 60)],
    "none": [([5, 6], None), ([7, 8], None)],
    "without": [([5, 6], 20), ([7, 8], 30)],
    "with": [([5, 6], 15), ([7, 8], 20)],
}


def completion(ids: list[int], verified: int | None) -> Completion:
    return Completion(
        output_ids=ids,
        accept_length=None if verified is None else 2.0,
        verify_rounds=None if verified is None else verified // 5,
        proposed_drafts=None,
        latency_s=1.0,
        verified_tokens=verified,
    )


def arm_run(arm: str, answers: list, rounds: int = 2, seconds: float = 2.0) -> ArmRun:
    completions = [completion(*answer) for answer in answers]
    return ArmRun(
        arm=arm,
        start_s=1.0,
        command=["-m", "sglang.launch_server"],
        sglang_version="0",
        state={},
        rounds=[Round(seconds, completions)] * rounds,
        pairs=None,
    )


def runs(**changed: list) -> list[ArmRun]:
    return [arm_run(arm, answers) for arm, answers in (ROUNDS | changed).items()]


def overconfident(rows: int = 1200, steps: int = 2) -> Pairs:
    random = np.random.default_rng(5)
    logits = random.normal(1.0, 2.0, (rows, steps))
    taken = random.random((rows, steps)) < 1 / (1 + np.exp(-logits / 3.0))
    return Pairs(logits, np.cumprod(taken, axis=1).sum(axis=1))


def report_of(**changed: list) -> dict:
    pairs = overconfident()
    folder = Path("model")
    return build_report(
        pairs,
        fit_positions(pairs.halves()[0]),
        settings=Settings(folder, folder, folder),
        runs=runs(**changed),
        prompts=PROMPTS,
        hardware=HARDWARE,
        source="test",
    )


def test_policy_figures() -> None:
    """Red when verified tokens are summed over rounds or over prompts of one arm only,
    or when a server without speculation gets a number."""
    figures = policy_figures(runs(), PROMPTS)
    verified = {arm: figures[arm]["verified_tokens"] for arm in ROUNDS}
    assert [figures[arm]["verify_rounds"] for arm in ROUNDS] == [20, 0, 10, 7]
    assert verified == {"fixed": 100, "none": None, "without": 50, "with": 35}
    assert figures["with"]["output_tok_per_s"] == 2.0
    assert figures["outputs_identical"] and figures["requests_compared"] == 2
    assert figures["with"]["classes"]["hard"]["accept_length"] == 2.0


def test_a_different_answer_is_seen() -> None:
    """Red when a policy, or speculation at all, changes a token and nobody says so."""
    for arm in ("with", "none"):
        answers = [ROUNDS[arm][0], ([7, 9], ROUNDS[arm][1][1])]
        report = report_of(**{arm: answers})
        assert report["policy"]["outputs_identical"] is False
        assert report["policy"]["requests_differing"] == [1]
        assert report["checks"]["outputs_identical"] is False
        assert "NOT identical" in render(report)


def test_a_policy_that_saves_nothing_fails() -> None:
    """Red when equal work counts as less."""
    report = report_of(**{"with": ROUNDS["without"]})
    assert report["checks"]["fewer_verified_tokens"] is False
    assert report_of()["checks"]["fewer_verified_tokens"] is True
    assert "FAILED fewer_verified_tokens" in render(report)


def test_positions_of_the_later_half() -> None:
    """Red when temperatures are scored on the pairs that they were fitted on, or the
    report loses what a reader needs."""
    pairs = overconfident()
    report = report_of()
    assert report["samples"] == {"verifies": 1200, "fit": 600, "report": 600}
    first = report["positions"][0]
    assert first["samples"] == 600
    late = pairs.halves()[1]
    assert first["observed"] == pytest.approx((late.correct > 0).mean())
    assert first["predicted"] == pytest.approx(
        (1 / (1 + np.exp(-late.logits[:, 0]))).mean()
    )
    assert first["after"]["ece"] < first["ece"]
    assert {"brier", "ece", "nll", "temperature"} <= first.keys()


def write_shards(folder: Path) -> str:
    pairs = overconfident()
    taken = np.arange(2)[None, :] < pairs.correct[:, None]
    shard = {
        "logits": torch.tensor(pairs.logits, dtype=torch.float32),
        "prefix_mask": torch.tensor(taken, dtype=torch.float32),
    }
    torch.save(shard, folder / "run.steps2.0.pt")
    return str(folder / "run.*.pt")


def test_shards_only(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Red when reading shards needs a server, writes temperatures that the server's
    argument refuses, or leaves the diagram out."""
    out = tmp_path / "out"
    assert program.main(["--shards", write_shards(tmp_path), "--out", str(out)]) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["policy"] is None and len(report["positions"]) == 2
    names = {path.name for path in out.iterdir()}
    assert names == {
        "report.json",
        "temperatures.json",
        "reliability.png",
        "reliability.svg",
    }
    temperatures = load_temperatures(str(out / "temperatures.json"), 2)
    fitted = [entry["temperature"] for entry in report["positions"]]
    assert temperatures.tolist() == pytest.approx(fitted)
    assert all(2.0 < value < 4.5 for value in fitted)
    assert "accept length: observed" in capsys.readouterr().out


def test_all_diagrams(tmp_path: Path) -> None:
    """Red when an arm without verified tokens, or an empty position, breaks a diagram."""
    report = report_of()
    empty = Pairs(np.full((4, 2), [0.5, np.nan]), np.array([0, 1, 0, 1]))
    report["positions"] += build_report(
        empty, fit_positions(empty), hardware=HARDWARE, source="test"
    )["positions"]
    paths = program.draw(report, tmp_path)
    assert {path.name for path in paths} == {
        "reliability.png",
        "reliability.svg",
        "policy.png",
        "policy.svg",
    }
    assert all(path.stat().st_size > 1000 for path in paths)


def test_chains_of_an_adaptive_configuration(tmp_path: Path) -> None:
    """Red when a fit has other positions than the adaptive arms draft, or a calibration
    without the arm that needs them is refused."""
    config = tmp_path / "adaptive.json"
    entries = {str(size): {"candidate_steps": steps} for size, steps in [(1, [3, 1])]}
    config.write_text(json.dumps(entries | {"update_interval": 2}))
    settings = Settings(
        *(tmp_path,) * 3, num_steps=3, server_args=(), adaptive_config=config
    )
    with mock.patch.object(inputs, "check_fork"):
        inputs.check_inputs(settings)
        inputs.check_inputs(
            dataclasses.replace(
                settings, num_steps=2, adaptive_config=None, order=("fixed",)
            )
        )
        with pytest.raises(ValueError, match="up to 3"):
            inputs.check_inputs(dataclasses.replace(settings, num_steps=2))


def test_a_server_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Red when a server that is not the CPU engine's loses what was on its path, or what
    was there hides the fork."""
    commands = []

    class Stopped(RuntimeError):
        pass

    def server(command: ServerCommand, timeout_s: float) -> None:
        commands.append(command)
        raise Stopped

    monkeypatch.setattr(measure, "Server", server)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/one", "", "/two"]))
    settings = Settings(Path("/model"), Path("/fork"), tmp_path, server_args=["--x"])
    with pytest.raises(Stopped):
        measure.run_arm(settings, "none", "0", [], [], print)
    (command,) = commands
    assert command.python_path == [Path("/fork"), Path("/one"), Path("/two")]
    assert command.args == ["--x", "--skip-server-warmup"] and command.env == {}


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--shards", "none/*.pt"], "--shards 'none/*.pt'"),
        (["--model-path", "none"], "--model-path"),
        (["--order", "with,fixed"], "--order"),
        (["--order", "fixed,both"], "both"),
        (["--order", "fixed,with,fixed"], "fixed once"),
        (["--rounds", "0"], "--rounds"),
        (["--prompts", "none.txt"], "--prompts none.txt"),
        (["--tp", "3"], "--tp 3"),
        (["--num-steps", "3"], "Set --num-steps 7"),
        (["--adaptive-config", "none.json"], "--adaptive-config none.json"),
    ],
)
def test_bad_input(
    args: list[str],
    names: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Red when bad input gives a traceback, or starts a server first."""
    model = program.prepare(tmp_path / "model")
    monkeypatch.setattr(program, "prepare", lambda folder: model)
    out = tmp_path / "out"
    assert program.main([*args, "--out", str(out)]) == 2
    assert names in capsys.readouterr().err
    assert not out.exists()


def test_too_few_prompts(tmp_path: Path) -> None:
    """Red when a short file sends prompts twice: their pairs would be copies."""
    path = tmp_path / "prompts.txt"
    path.write_text("one\n\ntwo\n")
    with pytest.raises(ValueError, match="2 lines, and 3 are needed"):
        program.read_prompts(path, 3)
    assert [p.content for p in program.read_prompts(path, 2)] == ["one", "two"]


def test_arms_differ_in_the_policy_alone() -> None:
    """Red when the arms that are compared differ in anything but the policy and its
    temperatures, or when an arm but the first collects."""
    folder = Path("x")
    settings = Settings(folder, folder, folder)
    without, with_ = (settings.arm_args(arm) for arm in ("without", "with"))
    assert with_[: len(without)] == without
    assert with_[len(without) :] == [
        "--speculative-adaptive-policy",
        "confidence",
        "--speculative-draft-confidence-temperatures",
        str(settings.temperatures_path),
    ]
    assert not any(arg.startswith("--speculative") for arg in settings.arm_args("none"))
    collects = [
        "SGLANG_DRAFT_CONFIDENCE_COLLECT_PATH" in settings.arm_env(arm)
        for arm in settings.order
    ]
    assert collects == [True, False, False, False]


def test_a_lost_verify_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red when a server that wrote fewer verifies than it answered with passes."""
    monkeypatch.setattr(measure, "_SHARDS_TIMEOUT_S", 0.0)
    settings = Settings(tmp_path, tmp_path, tmp_path)
    settings.shard_stem.parent.mkdir()
    shard = {"logits": torch.zeros(3, 2), "prefix_mask": torch.ones(3, 2)}
    torch.save(shard, f"{settings.shard_stem}.steps2.0.pt")
    assert len(measure.settled_pairs(settings, 3)) == 3
    with pytest.raises(RequestFailed, match="4 verifies.*3 rows"):
        measure.settled_pairs(settings, 4)
