"""The model and the prompts of a calibration, and the checks before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.calibrate.measure import Prompt
from scripts.calibrate.settings import Settings
from scripts.serving.models import check_fork, check_tp, read_config
from scripts.serving.ports import check_port_free
from scripts.small_model.folder import make_prompts, read_spec, write_model
from scripts.small_model.prepare import fixed_prompts
from scripts.small_model.spec import ModelSpec

# Of one request, in SGLang 0.5.23 without a configuration.
DEFAULT_CANDIDATES = (1, 3, 5, 7)
KINDS = ("easy", "hard")
# Set with `scripts/small_model/simulate.py`: accept lengths of about 5.5 and 1.5 at five
# drafts, and a draft that is surer of easy tokens, though not sure enough.
TWO_CLASSES = ModelSpec(
    vocab_size=1003,
    two_classes=True,
    intermediate_size=576,
    second_weight=1.0,
    noise=0.8,
    draft_noise=0.4,
)


def prepare(folder: Path) -> Path:
    """The model with easy and hard prompts, made when missing."""
    return write_model(TWO_CLASSES, folder)


def check_inputs(settings: Settings) -> None:
    """ValueError for what would fail only after a server has started."""
    check_fork(settings.fork)
    if settings.server_args is None:
        check_tp(read_config(settings.model_path), settings.tp)
    if settings.port is not None:
        check_port_free(settings.port)
    if "with" in settings.order:
        _check_longest_chain(settings)


def _check_longest_chain(settings: Settings) -> None:
    """The temperatures that are fitted have to be as many as an adaptive server drafts at
    most."""
    path, longest = settings.adaptive_config, max(DEFAULT_CANDIDATES)
    if path is not None:
        longest = _longest_candidate(path)
    if settings.num_steps != longest:
        raise ValueError(
            f"--num-steps {settings.num_steps}: the adaptive arms draft up to {longest} "
            f"({path or 'SGLang without --adaptive-config'}), and need a temperature for "
            f"each. Set --num-steps {longest}, or leave `with` out of --order."
        )


def _longest_candidate(path: Path) -> int:
    """Of an adaptive configuration, whose entries are batch sizes."""
    try:
        entries = [
            e for size, e in json.loads(path.read_text()).items() if size.isdigit()
        ]
        return max(step for entry in entries for step in entry["candidate_steps"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"--adaptive-config {path}: no adaptive configuration of SGLang "
            f"({type(error).__name__}: {error})"
        ) from None


def prompts_for(settings: Settings, count: int, seed: int) -> list[Prompt]:
    """Fixed prompts of token ids; easy and hard ones in turn where the model has both."""
    path, length = settings.model_path, settings.prompt_tokens
    spec = read_spec(path)
    if spec is None or not spec.two_classes:
        return [Prompt(ids) for ids in fixed_prompts(path, count, length, seed)]
    half = (count + 1) // 2
    pairs = zip(*(make_prompts(spec, half, length, seed, kind) for kind in KINDS))
    both = [Prompt(ids, kind) for pair in pairs for ids, kind in zip(pair, KINDS)]
    return both[:count]


def read_prompts(path: Path, count: int) -> list[Prompt]:
    """The first `count` lines of a text file; ValueError when it has fewer."""
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise ValueError(f"--prompts {path}: cannot be read ({error})") from None
    if len(lines) < count:
        raise ValueError(
            f"--prompts {path}: {len(lines)} lines, and {count} are needed: one for each "
            "of --pairs-requests and --requests"
        )
    return [Prompt(line) for line in lines[:count]]
