"""Start, watch, ask and stop a `python -m sglang.launch_server`.

Shared by the demo and the end-to-end tests; knows nothing of either.
"""

from scripts.serving import cpu_engine
from scripts.serving.client import Completion, RequestFailed, complete, complete_all
from scripts.serving.launch import Running, launch, server_command
from scripts.serving.memory import MemorySampler, PssSampler
from scripts.serving.ports import check_port_free, free_port
from scripts.serving.processes import interruptible
from scripts.serving.server import Server, ServerCommand, ServerError

__all__ = [
    "Completion",
    "MemorySampler",
    "PssSampler",
    "RequestFailed",
    "Running",
    "Server",
    "ServerCommand",
    "ServerError",
    "check_port_free",
    "complete",
    "complete_all",
    "cpu_engine",
    "free_port",
    "interruptible",
    "launch",
    "server_command",
]
