"""The git side: a branch with the stack on it, made from a clean tree or not at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fork.project import ForkError
from prepare_pr.contents import Tree
from prepare_pr.stack import Commit

BRANCH = "vocab-parallel-draft"
# For a tree from the wheel, which has no history and no author of its own.
NOBODY = ["-c", "user.name=prepare_pr", "-c", "user.email=prepare_pr@localhost"]


def git(root: Path, *arguments: str, check: bool = True) -> str:
    """Output of one git command in `root`. Raises ForkError when it fails."""
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise ForkError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip() if done.returncode == 0 else ""


def is_checkout(root: Path) -> bool:
    """Whether `root` is the top of a git checkout of its own."""
    top = git(root, "rev-parse", "--show-toplevel", check=False)
    return bool(top) and Path(top).resolve() == root.resolve()


def ready(root: Path, base: str) -> None:
    """Refuse a tree in which our commits would mix with someone's work.

    A tree without git gets a repository whose first commit, `base`, is the tree.
    """
    if not is_checkout(root):
        git(root, "init", "--quiet", "--initial-branch", "main")
        git(root, "add", "--all", "--force")
        git(root, *NOBODY, "commit", "--quiet", "--no-verify", "-m", base)
    if git(root, "status", "--porcelain", "--untracked-files=no"):
        raise ForkError(f"{root} has uncommitted changes; commit or stash them first")
    if git(root, "branch", "--list", BRANCH):
        raise ForkError(
            f"{root} has a branch {BRANCH} already; delete it (git branch -D {BRANCH}) "
            "or give another --tree"
        )


def commit_stack(tree: Tree, stack: list[Commit]) -> list[str]:
    """Commit the stack on a new branch; returns the base and the commits' ids.

    On any error the tree goes back to where it was, without the branch.
    """
    root = tree.root
    author = [] if git(root, "config", "user.email", check=False) else NOBODY
    start = git(root, "symbolic-ref", "--short", "HEAD", check=False)
    base = git(root, "rev-parse", "HEAD")
    git(root, "switch", "--quiet", "--create", BRANCH)
    ids = [base]
    try:
        for commit in stack:
            paths = [write(tree, path, data) for path, data in commit.files.items()]
            git(root, "add", "--force", "--", *paths)
            # Upstream's hooks run once at the end, on the whole (checks.py).
            message = ["commit", "--quiet", "--no-verify", "-m", commit.message]
            git(root, *author, *message)
            ids.append(git(root, "rev-parse", "HEAD"))
    except BaseException:
        git(root, "reset", "--quiet", "--hard", base, check=False)
        git(root, "switch", "--quiet", *([start] if start else ["--detach", base]))
        git(root, "branch", "--quiet", "-D", BRANCH, check=False)
        raise
    return ids


def write(tree: Tree, path: str, data: bytes) -> str:
    """Write one file; returns its path in the tree."""
    place = tree.place(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    mode = place.stat().st_mode if place.exists() else None
    # Not in place: a tree from the wheel may share its files with other trees.
    beside = place.with_name(f".{place.name}.new")
    beside.write_bytes(data)
    beside.chmod(mode & 0o777 | 0o200 if mode else 0o644)
    beside.replace(place)
    return place.relative_to(tree.root).as_posix()
