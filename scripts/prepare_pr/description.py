"""The description of the pull request, in the sections of upstream's template."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from prepare_pr.checks import Check
from prepare_pr.contents import Contents
from prepare_pr.records import Results
from prepare_pr.stack import Commit
from prepare_pr.tables import Table, folded

WORDS, WORD_BYTES = 3, 4
TEST = "test/registered/"


@dataclass(frozen=True)
class Facts:
    """What one run of prepare_pr found out."""

    base: str
    stack: list[Commit]
    sizes: list[str]
    kinds: dict[str, str]
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
        "serve drafts as before and logs the reason once.\n\n"
        "The probability is opt-in as well: `--speculative-draft-confidence` reports it "
        "with a request and in the metrics, `--speculative-adaptive-policy confidence` "
        "chooses the number of drafts by it, and DSpark can plan its verify lengths by "
        "it (`--speculative-dspark-confidence-source draft-probability`)."
    )


def modifications(facts: Facts) -> str:
    lines = [
        "Commits, each of which imports without those after it, and none of which "
        "changes a launch without the flags:",
        "",
    ]
    for commit, size in zip(facts.stack, facts.sizes[1:], strict=True):
        about = " ".join(commit.body.split())
        lines.append(f"- **{commit.title}** ({size}). {about}")
    new = len(facts.contents.new)
    changed = len(facts.contents.files) - new
    kinds = "; ".join(f"{name}: {text}" for name, text in facts.kinds.items())
    lines += [
        "",
        f"In all {facts.sizes[0]}: {new} new files, {changed} changed. {kinds}.",
    ]
    lines += [""]
    lines += folded("Changes of existing files, and why", reasons(facts.contents))
    lines += [f"\n**To do by hand:** {text}." for text in facts.missing]
    return "\n".join(lines)


def reasons(contents: Contents) -> list[str]:
    """A line a changed file of the package, with the reason of every edit once."""
    lines = []
    for change in contents.plan.changes.values():
        edits = [splice.edit for splice in change.splices]
        why = dict.fromkeys(" ".join(edit.why.split()) for edit in edits)
        lines.append(f"- `{edits[0].file}`: {' '.join(why)}")
    return lines


def accuracy(facts: Facts) -> str:
    lines = [
        "The tests ask for the dense path's token ids and selected logits, bit for bit "
        "and on every rank; their reference is NumPy in FP64 on the gathered logits.",
        "",
        *folded("Registered tests, seconds as registered", registered(facts)),
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
            "**Only CPU results are recorded: nothing here was measured on a GPU.** No "
            "CUDA graph and no NVLink exchange has run, and no claim about GPU speed is "
            "made."
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


def registered(facts: Facts) -> list[str]:
    """A row a test file: its registrations, with their literal arguments."""
    rows = ["| file | CPU | CUDA |", "| --- | --- | --- |"]
    for path, data in sorted(facts.contents.files.items()):
        if not (path.startswith(TEST) and path.endswith(".py")):
            continue
        cells = {"register_cpu_ci": "", "register_cuda_ci": ""}
        for node in ast.parse(data).body:
            call = node.value if isinstance(node, ast.Expr) else None
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in cells:
                values = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
                seconds = values.pop("est_time")
                cells[call.func.id] = f"{seconds} s, {', '.join(values.values())}"
        rows.append(f"| `{path}` | {' | '.join(cells.values())} |")
    return rows
