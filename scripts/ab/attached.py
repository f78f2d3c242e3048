"""Servers that someone else started, for instance the two services of compose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scripts.serving import Server, ServerCommand


@dataclass(frozen=True)
class AttachedCommand(ServerCommand):
    """Stands where a command would, for the record; `model_path` is the URL."""

    def argv(self) -> list[str]:
        return ["attached", str(self.model_path)]


class AttachedServer(Server):
    """A server at a URL: asked over HTTP, never started, watched or stopped."""

    def __init__(self, command: AttachedCommand, ready_timeout_s: float) -> None:
        super().__init__(command, ready_timeout_s)
        self.url = str(command.model_path)

    def start(self) -> None:
        """Nothing to do: `wait_ready` waits for whoever starts it."""


def parse_attach(texts: Sequence[str], sides: Sequence[str]) -> dict[str, str]:
    """`SIDE=URL`, one for each side; empty for none. ValueError says what is wrong."""
    urls = {}
    for text in texts:
        side, _, url = text.partition("=")
        if side not in sides or not url.startswith(("http://", "https://")):
            raise ValueError(
                f"--attach {text}: give SIDE=URL, with the side {' or '.join(sides)}"
            )
        urls[side] = url.rstrip("/")
    missing = [side for side in sides if side not in urls]
    if urls and missing:
        raise ValueError(f"--attach: no URL for {', '.join(missing)}")
    return urls
