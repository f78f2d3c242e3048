"""From a profile to the server of one arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.ab.attached import AttachedCommand, AttachedServer
from scripts.ab.plan import Start
from scripts.ab.profile import Profile
from scripts.serving import MemorySampler, Server, ServerCommand, cpu_engine
from scripts.serving.arms import flag_args
from scripts.serving.gpu import used_memory_reader
from scripts.serving.memory import session_pss_bytes
from scripts.serving.models import check_fork, check_tp, read_config
from scripts.serving.ports import check_port_free
from scripts.serving.status import Say
from scripts.small_model.folder import read_spec
from scripts.small_model.prepare import fixed_prompts, prepare_model
from scripts.small_model.spec import ModelSpec

GPU_INTERVAL_S, CPU_INTERVAL_S = 0.2, 2.0
MEMORY_KIND = {
    "gpu": "GPU memory in use on all visible devices (NVML), every 0.2 s",
    "cpu": "proportional set size of the server's processes, every 2 s",
}
# For models whose vocabulary is not at hand; any text will do.
_TEXTS = (
    "Explain why the sky is blue to a child.",
    "Write a function that reverses a linked list.",
    "List the planets of the solar system with one fact each.",
    "Summarise how a bill becomes a law.",
    "What should I check before I buy a used car?",
    "Describe the water cycle in five sentences.",
    "Translate 'good morning' into ten languages.",
    "Tell a short story about a lighthouse keeper.",
)


@dataclass(frozen=True)
class Launch:
    """How the servers of a profile are started; the arm is the only difference.

    `fork` is the tree that is served, None for an installed wheel of the fork. `attach`
    has the URL of each side when others run the servers.
    """

    profile: Profile
    model: Path | str
    fork: Path | None
    port: int | None
    attach: dict[str, str] = field(default_factory=dict)

    @property
    def memory_kind(self) -> str | None:
        """What memory figures are; None where none are taken."""
        if self.attach:
            return None
        return MEMORY_KIND["gpu" if self.profile.engine == "gpu" else "cpu"]

    def server_args(self, arm: str) -> list[str]:
        """Arguments after model path, host and port."""
        profile = self.profile
        if profile.engine == "stand-in":
            most = max(profile.concurrency)
            length = profile.input_tokens + profile.output_tokens
            length = max(length, profile.check_tokens + profile.input_tokens)
            length += 2 * profile.num_steps + 8
            base = cpu_engine.engine_args(
                tp=profile.tp,
                dtype=profile.dtype,
                max_running_requests=most,
                max_total_tokens=max(4096, 2 * most * length),
                context_length=max(512, 2 * length),
            )
            base += cpu_engine.chain_args(profile.num_steps)
        else:
            base = ["--tp", str(profile.tp)]
        return [*base, *profile.args, *flag_args(arm)]

    def python_path(self) -> list[Path]:
        """Folders in front of `PYTHONPATH`, for servers and for clients of SGLang."""
        if self.profile.engine == "stand-in":
            return cpu_engine.python_path(self.fork)
        return [] if self.fork is None else [self.fork]

    def environment(self) -> dict[str, str]:
        """Variables on top of this process's."""
        if self.profile.engine == "stand-in":
            return cpu_engine.environment(self.profile.tp) | self.profile.env
        # An inherited path could put stand-ins in front of the host's kernels.
        return {"PYTHONPATH": ""} | self.profile.env

    def server(self, start: Start, port: int, log_path: Path) -> Server:
        """The server of a start, not started yet."""
        common = {
            "port": port,
            "log_path": log_path,
            "env": self.environment(),
            "python_path": self.python_path(),
        }
        timeout_s = self.profile.ready_timeout_s
        if self.attach:
            url = self.attach[start.side]
            command = AttachedCommand(model_path=url, args=[], **common)
            return AttachedServer(command, timeout_s)
        args = self.server_args(start.arm)
        command = ServerCommand(model_path=self.model, args=args, **common)
        return Server(command, timeout_s)

    def memory_sampler(self, server: Server) -> MemorySampler | None:
        """Samples what the profile's engine keeps its model in; None for a server that
        is not ours, whose processes may be anywhere."""
        if self.attach:
            return None
        leader = server.pid
        if self.profile.engine == "gpu":
            return MemorySampler(used_memory_reader(), GPU_INTERVAL_S)
        return MemorySampler(lambda: session_pss_bytes(leader), CPU_INTERVAL_S)

    def idle_memory(self) -> Callable[[], int] | None:
        """What is in use before the server starts; None where only it is counted."""
        here = self.profile.engine == "gpu" and not self.attach
        return used_memory_reader() if here else None

    def check_prompts(self) -> Sequence[Sequence[int] | str]:
        """The fixed greedy prompts whose answers both sides have to share."""
        profile = self.profile
        if isinstance(self.model, Path) and read_spec(self.model) is not None:
            return fixed_prompts(
                self.model, profile.check_prompts, profile.input_tokens, profile.seed
            )
        repeats = -(-profile.check_prompts // len(_TEXTS))
        numbered = [f"{text} ({i + 1})" for i in range(repeats) for text in _TEXTS]
        return numbered[: profile.check_prompts]


def prepare(
    profile: Profile,
    fork: Path | None,
    port: int | None,
    attach: dict[str, str],
    say: Say,
) -> Launch:
    """Everything that a server needs. ValueError for what would fail later."""
    if fork is not None:
        check_fork(fork)
    if port is not None:
        check_port_free(port)
    if profile.engine == "gpu" and not attach:
        used_memory_reader()
    return Launch(profile, _model(profile, say), fork, port, attach)


def _model(profile: Profile, say: Say) -> Path | str:
    if profile.model is None:
        spec = ModelSpec(vocab_size=profile.vocab_size, dtype=profile.dtype)
        folder = prepare_model(None, spec, say).resolve()
        check_tp(read_config(folder), profile.tp)
        return folder
    path = Path(profile.model)
    if path.is_dir():
        return path.resolve()
    if path.is_absolute() or profile.model.startswith("."):
        raise ValueError(f"--model-path {path}: no such folder")
    return profile.model
