"""Ports on the loopback interface."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def check_port_free(port: int) -> None:
    """Raise ValueError when something listens on the port or it cannot be bound."""
    if not 0 < port < 65536:
        raise ValueError(f"--port {port}: not a port number")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ValueError(
                f"--port {port}: cannot listen on {HOST} ({error.strerror}); stop what "
                f"uses it or choose another --port"
            ) from None
