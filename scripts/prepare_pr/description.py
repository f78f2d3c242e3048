"""The description of the pull request, in the sections of upstream's template."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from prepare_pr.checks import Check
from prepare_pr.contents import Contents
from prepare_pr.records import Results, Table
from prepare_pr.stack import Commit

WORDS, WORD_BYTES = 3, 4
TEST = "test/registered/"


@dataclass(frozen=True)
class Facts:
    """What one run of prepare_pr found out."""

    base: str
    stack: list[Commit]
    sizes: list[str]
    contents: Contents
    checks: list[Check]
    results: Results
    missing: list[str]
    tests: list[str]


def describe(facts: Facts) -> str:
    """Markdown: motivation, modifications, accuracy, speed, checklist."""
    sections = {
        "Motivation": motivation(),
        "Modifications": modifications(facts),
        "Accuracy Tests": accuracy(facts),
        "Speed Tests and Profiling": speed(facts),
        "Checklist": checklist(facts),
    }
    return "\n\n".join(f"## {name}\n\n{text}" for name, text in sections.items()) + "\n"


def motivation() -> str:
    return (
        "Speculative decoding drafts greedily: of the draft's logits only the largest "
        "is needed. Under tensor parallelism every rank gathers all of them, "
        "`V * bytes(dtype)` a row, to take an argmax. What the argmax needs are "
        f"{WORDS} words a rank (largest logit, log-sum-exp, global id), "
        f"`TP * {WORDS * WORD_BYTES}` bytes a row. The log-sum-exp gives the exact "
        "probability of the drafted token as well.\n\n"
        "Opt-in: `--speculative-vocab-parallel-draft {off,auto,on}`, `off` by default. "
        "Target-model sampling and verification are untouched. What the path does not "
        "serve drafts as before and logs the reason once."
    )


def modifications(facts: Facts) -> str:
    lines = ["Commits, each reviewable by itself:", ""]
    for commit, size in zip(facts.stack, facts.sizes[1:], strict=True):
        about = " ".join(commit.body.split())
        lines.append(f"- **{commit.title}** ({size}). {about}")
    new = len(facts.contents.new)
    changed = len(facts.contents.files) - new
    lines += ["", f"In all {facts.sizes[0]}: {new} new files, {changed} changed."]
    changes = [
        f"- `{edit.file}`: {' '.join(edit.why.split())}"
        for change in facts.contents.plan.changes.values()
        for edit in (splice.edit for splice in change.splices)
    ]
    lines += ["", "Changes of existing files, and why:", "", *dict.fromkeys(changes)]
    lines += [f"\n**To do by hand:** {text}." for text in facts.missing]
    return "\n".join(lines)


def accuracy(facts: Facts) -> str:
    lines = [
        "The tests ask for the dense path's token ids and selected logits, bit for bit "
        "and on every rank; their reference is NumPy in FP64 on the gathered logits.",
        "",
        "Registered tests (estimated seconds as they are registered):",
        "",
        *registered(facts.contents.files),
    ]
    if facts.tests:
        lines += ["", "Run on the prepared tree:", "", *facts.tests]
    else:
        lines += ["", "Not run on the prepared tree by this command (`--test` does)."]
    return "\n\n".join(["\n".join(lines), *tables(facts.results.accuracy)])


def speed(facts: Facts) -> str:
    results = facts.results
    if results.on_gpu:
        head = "From the recorded runs named under each table."
    else:
        head = (
            "**Only CPU results are recorded: nothing here was measured on a GPU**, so "
            "that no claim about GPU speed is made."
        )
    parts = [head, *tables(results.speed)]
    if not results.speed:
        parts.append("No speed record was found.")
    if results.unread:
        parts.append("Further records: " + ", ".join(results.unread))
    return "\n\n".join(parts)


def tables(found: list[Table]) -> list[str]:
    return [table.markdown() for table in found]


def checklist(facts: Facts) -> str:
    failed = [check for check in facts.checks if check.passed is False]
    has_tests = any(path.startswith(TEST) for path in facts.contents.files)
    measured = facts.results.on_gpu and bool(facts.results.accuracy)
    items = [
        (not failed, "Format your code with pre-commit: what could run is below."),
        (has_tests, "Add unit tests."),
        (not facts.missing, "Update documentation."),
        (measured, "Provide accuracy and speed benchmark results (on a GPU)."),
    ]
    lines = [f"- [{'x' if done else ' '}] {text}" for done, text in items]
    lines += ["", f"Checks on {facts.base}:", "", *(f"- {c}" for c in facts.checks)]
    return "\n".join(lines)


def registered(files: dict[str, bytes]) -> list[str]:
    """A line a test file: its registrations, with their literal arguments."""
    lines = []
    for path, data in sorted(files.items()):
        if not (path.startswith(TEST) and path.endswith(".py")):
            continue
        calls = [
            node.value
            for node in ast.parse(data).body
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ]
        names = [
            ast.unparse(call)
            for call in calls
            if getattr(call.func, "id", "").startswith("register_")
        ]
        lines.append(f"- `{path}`: " + ", ".join(f"`{name}`" for name in names))
    return lines
