"""GitHub's workflows: rights, pins and commands that a review would ask about.

actionlint checks their syntax and expressions where it is installed; what is below are
rules of this project that it does not know.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.name: path for path in sorted(FOLDER.glob("*.yml"))}
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
COMMANDS = re.compile(
    r"make (\w[\w-]*)( \w+=[\w-]+)*"
    r"|python (scripts/\w+(?:\.py)?)( [\w./-]+)*"
    r"|python -m pip install -r requirements-dev\.txt"
    r"|pre-commit run --all-files"
)


def parsed(path):
    data = yaml.safe_load(path.read_text())
    data["on"] = data.pop(True)  # YAML 1.1 reads the key `on` as a truth value
    return data


def jobs():
    return [
        pytest.param(parsed(path), job, id=f"{name}:{key}")
        for name, path in WORKFLOWS.items()
        for key, job in parsed(path)["jobs"].items()
    ]


def steps(job, key):
    return [step[key] for step in job["steps"] if key in step]


def test_there_are_workflows():
    """Red when the folder is renamed and every test below has nothing to look at."""
    assert {"ci.yml", "gpu.yml", "upstream-watch.yml"} <= WORKFLOWS.keys()


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_by_commit(name):
    """Red when an action follows a tag, which its owner can move."""
    lines = WORKFLOWS[name].read_text().splitlines()
    uses = [line.split("uses: ", 1)[1] for line in lines if "uses: " in line]
    assert uses and [line for line in uses if not PINNED.fullmatch(line)] == []


def test_an_action_has_one_pin():
    """Red when two workflows use different commits of one action."""
    text = "".join(path.read_text() for path in WORKFLOWS.values())
    pins = set(PINNED.findall(text))
    assert len({pin.split("@")[0] for pin in pins}) == len(pins)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_rights_are_least(name):
    """Red when a workflow may write to the repository, or leaves its rights open."""
    data = parsed(WORKFLOWS[name])
    assert data["permissions"] == {"contents": "read"}
    for key, job in data["jobs"].items():
        extra = {"issues": "write"} if key == "watch" else {}
        assert job.get("permissions", data["permissions"]) == {
            "contents": "read",
            **extra,
        }
    assert "pull_request_target" not in data["on"]
    assert "secrets." not in WORKFLOWS[name].read_text()


@pytest.mark.parametrize("data, job", jobs())
def test_a_job_ends_and_keeps_no_token(data, job):
    """Red when a job can hang for hours, or a checkout leaves a token on disk."""
    assert 0 < job["timeout-minutes"] <= 120
    assert data["concurrency"]["group"]
    for step in job["steps"]:
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("data, job", jobs())
def test_steps_are_commands_that_a_person_runs(data, job):
    """Red when a step has logic of its own, or calls what is not in the repository."""
    makefile = (ROOT / "Makefile").read_text()
    for command in steps(job, "run"):
        match = COMMANDS.fullmatch(command)
        assert match, command
        if target := match[1]:
            assert re.search(rf"^{target}:", makefile, re.M), command
        if script := match[3]:
            assert (ROOT / script).exists(), command


@pytest.mark.parametrize("data, job", jobs())
def test_no_text_of_an_event_reaches_a_shell(data, job):
    """Red when a branch name or a title could be run as a command."""
    assert [command for command in steps(job, "run") if "${{" in command] == []


def test_pull_requests_cancel_their_older_runs():
    """Red when each push of a pull request leaves a run of half an hour behind."""
    for name in ("ci.yml", "gpu.yml"):
        concurrency = parsed(WORKFLOWS[name])["concurrency"]
        assert "github.event.pull_request.number" in concurrency["group"]
        assert "pull_request" in concurrency["cancel-in-progress"]


def test_the_tests_run_on_every_supported_python():
    """Red when a Python is supported that the tests do not run on."""
    source = (ROOT / "scripts/setup_env.py").read_text()
    supported = re.findall(r"\((3), (\d+)\)", source.split("SUPPORTED = ")[1])
    matrix = parsed(WORKFLOWS["ci.yml"])["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == [".".join(version) for version in supported]


def test_gpu_runs_start_by_hand_or_label_only():
    """Red when a push of anyone could start code on our own machines."""
    data = parsed(WORKFLOWS["gpu.yml"])
    assert set(data["on"]) == {"workflow_dispatch", "pull_request"}
    assert data["on"]["pull_request"] == {"types": ["labeled"]}
    for job in data["jobs"].values():
        assert "self-hosted" in job["runs-on"]
        assert "inputs.gpus" in job["if"] and "label.name" in job["if"]


def test_the_watch_cannot_turn_the_repository_red():
    """Red when a change of SGLang's fails a workflow of ours."""
    data = parsed(WORKFLOWS["upstream-watch.yml"])
    assert set(data["on"]) == {"schedule", "workflow_dispatch"}
    assert data["jobs"]["watch"]["continue-on-error"] is True


@pytest.mark.skipif(
    not shutil.which("actionlint"), reason="actionlint is not installed"
)
def test_actionlint():
    """Red when GitHub would not run a workflow as it is written."""
    done = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
