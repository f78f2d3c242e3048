"""The model folder on disk: written whole or not at all, reused when it fits."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from safetensors.torch import load_file, save_file

from scripts.small_model.simulate import SmallModel
from scripts.small_model.spec import ModelSpec
from scripts.small_model.tokenizer import write_tokenizer
from scripts.small_model.weights import WeightBuilder, active_ids, class_ids

SPEC_FILE = "small_model.json"
WEIGHTS_FILE = "model.safetensors"
# Raise it when the construction changes, so that old folders are made again.
FORMAT = 1


def write_model(spec: ModelSpec, folder: Path) -> Path:
    """Make the model in `folder`; a folder of the same spec is kept as it is."""
    if read_spec(folder) == spec:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    try:
        scratch.chmod(0o755)
        weights = WeightBuilder(spec).build()
        save_file(weights, scratch / WEIGHTS_FILE, metadata={"format": "pt"})
        (scratch / WEIGHTS_FILE).chmod(0o644)
        config = json.dumps(spec.to_config(), indent=2)
        (scratch / "config.json").write_text(config + "\n")
        write_tokenizer(spec, scratch)
        record = json.dumps({"format": FORMAT, **spec.to_dict()}, indent=2)
        (scratch / SPEC_FILE).write_text(record + "\n")
        if folder.exists():
            if not (folder / SPEC_FILE).exists() and any(folder.iterdir()):
                raise FileExistsError(
                    f"{folder} holds something else; choose another --out folder"
                )
            shutil.rmtree(folder)
        scratch.rename(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return folder


def read_spec(folder: Path) -> ModelSpec | None:
    """The spec that a folder was made from; None for any other folder."""
    try:
        record = json.loads((folder / SPEC_FILE).read_text())
        if record.pop("format") != FORMAT or not (folder / WEIGHTS_FILE).is_file():
            return None
        return ModelSpec(**record)
    except (FileNotFoundError, NotADirectoryError, KeyError, TypeError, ValueError):
        return None


def load_model(folder: Path) -> SmallModel:
    """The reference forward of a folder; raises FileNotFoundError for others."""
    spec = read_spec(folder)
    if spec is None:
        raise FileNotFoundError(f"{folder} is not a small model's folder")
    return SmallModel(spec, load_file(folder / WEIGHTS_FILE))


def make_prompts(
    spec: ModelSpec, count: int, length: int, seed: int, kind: str | None = None
) -> list[list[int]]:
    """Fixed prompts of active token ids, `count` lists of `length`; of one class with
    `kind`, `easy` or `hard`."""
    import torch

    ids = active_ids(spec) if kind is None else class_ids(spec)[kind]
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(ids), (count, length), generator=generator)
    return ids[picks].tolist()
