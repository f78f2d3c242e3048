"""Two servers of the tree, the flag off and on: same answers, and what they loaded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.serving import Completion, complete_all
from scripts.serving.arms import ARMS, flag_args
from scripts.serving.bare import Roots, bare_server, feature_files, loaded_files
from scripts.serving.client import get_json
from scripts.serving.status import find_draft_path

NEW_TOKENS = 24
PROMPTS = [[300 + i, 17 * i + 1, 5, 900 - i] for i in range(6)]
CONCURRENCY = (1, 3)


@dataclass(frozen=True)
class Arm:
    """What one server answered, said about its draft path, and loaded."""

    answers: list[Completion]
    draft_path: dict[str, Any] | None
    version: str
    files: set[Path]


def serve(roots: Roots, arm: str, folder: Path) -> Arm:
    """Serve the arm with the tree and the stand-ins on the path and nothing else.

    Raises ServerError when it does not come up.
    """
    log = folder / f"server-{arm}.log"
    with bare_server(log, folder / "model", [roots.tree], flag_args(arm)) as server:
        answers = [
            answer
            for level in CONCURRENCY
            for answer in complete_all(server.url, PROMPTS, NEW_TOKENS, level)
        ]
        server.check_alive()
        info = get_json(f"{server.url}/server_info")
    files = loaded_files(server.log_text())
    return Arm(answers, find_draft_path(info), info.get("version", ""), files)


def compare(roots: Roots, folder: Path) -> dict[str, Any]:
    """Both arms; `faults` is empty when they agree and only the tree was loaded."""
    dense, packed = (serve(roots, arm, folder) for arm in ARMS)
    return {
        "python": sys.version.split()[0],
        "sglang_version": packed.version,
        "pythonpath": [str(roots.tree), str(roots.stand_ins)],
        "requests": len(packed.answers),
        "output_tokens": sum(len(answer.output_ids) for answer in packed.answers),
        "accept_length": [answer.accept_length for answer in packed.answers],
        "draft_path": packed.draft_path,
        "feature_files": feature_files(packed.files, roots.tree),
        "files_of_the_tree": sum(f.is_relative_to(roots.tree) for f in packed.files),
        "faults": faults(roots, dense, packed),
    }


def faults(roots: Roots, dense: Arm, packed: Arm) -> list[str]:
    """What is wrong with the two arms, a line each."""
    found = []
    for name, arm in (("dense", dense), ("packed", packed)):
        found += [f"{name}: loaded {path}" for path in roots.strays(arm.files)]
        if roots.tree / "sglang/launch_server.py" not in arm.files:
            found.append(f"{name}: sglang.launch_server was not loaded from the tree")
        found += [f"{name}: {a.error}" for a in arm.answers if a.error]
    if early := feature_files(dense.files, roots.tree):
        found.append(f"dense: imported {early} with the flag off")
    if not feature_files(packed.files, roots.tree):
        found.append("packed: none of the feature's modules was loaded")
    if (packed.draft_path or {}).get("path") != "packed":
        found.append(f"packed: the server says {packed.draft_path}")
    for number, (ours, theirs) in enumerate(zip(packed.answers, dense.answers)):
        for key in ("output_ids", "accept_length", "correct_histogram"):
            if getattr(ours, key) != getattr(theirs, key):
                found.append(f"request {number}: {key} differs")
    return found
