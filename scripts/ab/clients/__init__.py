"""Load generators. Each turns a `Load` into a command and its files into a `Result`."""

from scripts.ab.clients.aiperf import AIPerf
from scripts.ab.clients.base import Client, ClientError, Latency, Load, Result
from scripts.ab.clients.sglang_serving import SGLangServing

CLIENTS: dict[str, type[Client]] = {
    client.name: client for client in (SGLangServing, AIPerf)
}

__all__ = ["CLIENTS", "Client", "ClientError", "Latency", "Load", "Result"]
