"""Which file goes into which commit, and that each commit stands on those before it."""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from fork.project import ForkError

STACK = Path(__file__).with_name("stack.toml")


@dataclass
class Commit:
    """One commit: its message, the patterns of its paths, and its files by path."""

    name: str
    title: str
    body: str
    paths: list[str]
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def message(self) -> str:
        return f"{self.title}\n\n{self.body.strip()}\n"


def make_stack(
    files: dict[str, bytes], new: set[str], source: Path = STACK
) -> list[Commit]:
    """The commits that hold `files` (by path in a checkout); empty ones are left out.

    `new` are the paths that upstream does not have.

    Raises ForkError for a path that no pattern matches, and for a commit that imports
    a module of ours that only a later one brings.
    """
    table = tomllib.loads(source.read_text("utf-8"))
    commits = [Commit(**entry) for entry in table["commit"]]
    homeless = []
    for path, data in sorted(files.items()):
        home = home_of(path, commits)
        if home is None:
            homeless.append(f"{path}: no commit of {source.name} has a pattern for it")
        else:
            home.files[path] = data
    if homeless:
        raise ForkError.of(homeless)
    stack = [commit for commit in commits if commit.files]
    if problems := too_early(stack, new):
        raise ForkError.of(problems)
    return stack


def home_of(path: str, commits: list[Commit]) -> Commit | None:
    """The commit with the longest pattern that matches."""
    fits = [
        (len(pattern), commit)
        for commit in commits
        for pattern in commit.paths
        if fnmatchcase(path, pattern)
    ]
    return max(fits, key=lambda fit: fit[0])[1] if fits else None


def too_early(stack: list[Commit], new: set[str]) -> list[str]:
    """Imports of a module that a later commit adds, as problems."""
    born = {
        module_of(path): number
        for number, commit in enumerate(stack)
        for path in commit.files
        if path in new and path.endswith(".py")
    }
    problems = []
    for number, commit in enumerate(stack):
        for path, data in commit.files.items():
            for module in imports(data) if path.endswith(".py") else ():
                if born.get(module, -1) > number:
                    problems.append(
                        f"{path} (commit {commit.name}) imports {module}, which comes "
                        f"with {stack[born[module]].name}: move one in {STACK.name}"
                    )
    return problems


def module_of(path: str) -> str:
    return path.removeprefix("python/").removesuffix(".py").replace("/", ".")


def imports(data: bytes) -> set[str]:
    """Modules that a file may import at its top level, `from a import b` as a and a.b.

    Imports inside functions run later; an intermediate commit may have them.
    """
    found: set[str] = set()
    for node in ast.parse(data).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{a.name}" for a in node.names)}
    return found
