"""The small model's construction, folder and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from scripts.calibrate.inputs import TWO_CLASSES
from scripts.small_model.__main__ import main
from scripts.small_model.folder import load_model, make_prompts, read_spec, write_model
from scripts.small_model.simulate import generate
from scripts.small_model.spec import ModelSpec
from scripts.small_model.weights import WeightBuilder, active_ids, class_ids

SPECS = {
    "uneven": ModelSpec(vocab_size=1003),
    "tp3": ModelSpec(vocab_size=1001, hidden_size=192, num_heads=6, num_kv_heads=3),
    "tied": ModelSpec(vocab_size=1002, tie_word_embeddings=True),
    "bfloat16": ModelSpec(vocab_size=1003, dtype="bfloat16"),
    "spread": ModelSpec(vocab_size=20011, active_tokens=900),
    "kv-below-tp": ModelSpec(vocab_size=1003, num_kv_heads=2, seed=5),
}


@pytest.fixture(scope="module", autouse=True)
def few_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_drafts_well_some_of_the_time(spec: ModelSpec, tmp_path: Path) -> None:
    """Red when drafts are always or never right, when outputs repeat, or when one
    shard of the vocabulary never holds a winner."""
    model = load_model(write_model(spec, tmp_path / "model"))
    runs = [generate(model, p, 48, 3) for p in make_prompts(spec, 6, 16, seed=2)]
    tokens = sum(len(run.output_ids) for run in runs)
    accept = tokens / sum(run.verify_rounds for run in runs)
    assert 1.5 <= accept <= 3.5
    assert all(len(set(run.output_ids)) > 24 for run in runs)
    assert len({tuple(run.output_ids) for run in runs}) == len(runs)
    shards = {i * 4 // spec.vocab_size for run in runs for i in run.output_ids}
    assert shards == {0, 1, 2, 3}


def test_classes_are_drafted_differently(tmp_path: Path) -> None:
    """Red when acceptance does not depend on the prompt, when successors leave their
    class, or when the easy class is always right."""
    spec = TWO_CLASSES
    model = load_model(write_model(spec, tmp_path / "model"))
    ids = {kind: set(found.tolist()) for kind, found in class_ids(spec).items()}
    accept = {}
    for kind in ("easy", "hard"):
        prompts = make_prompts(spec, 3, 16, seed=2, kind=kind)
        assert all(set(prompt) <= ids[kind] for prompt in prompts)
        runs = [generate(model, prompt, 36, 5) for prompt in prompts]
        tokens = [token for run in runs for token in run.output_ids]
        assert sum(token in ids[kind] for token in tokens) > 0.9 * len(tokens)
        # No short cycle; which tokens come again depends on the CPU's rounding.
        assert all(len(set(run.output_ids)) > 12 for run in runs)
        accept[kind] = len(tokens) / sum(run.verify_rounds for run in runs)
    assert 1.2 < accept["hard"] < 2.5
    assert 3.5 < accept["easy"] < 5.9


def test_context_decides(tmp_path: Path) -> None:
    """Red when attention is too weak to matter: then a wrong KV cache would not show."""
    spec = SPECS["uneven"]
    model = load_model(write_model(spec, tmp_path / "model"))
    contexts = make_prompts(spec, 8, 8, seed=4)
    lasts = make_prompts(spec, 10, 1, seed=9)
    successors = [
        {model.select(model.target(torch.tensor(c + last))[-1]) for c in contexts}
        for last in lasts
    ]
    assert sum(len(found) > 1 for found in successors) >= len(lasts) / 2


def test_same_spec_same_weights() -> None:
    """Red when anything but the spec's seed decides the weights."""
    spec = SPECS["uneven"]
    first, second = WeightBuilder(spec).build(), WeightBuilder(spec).build()
    other = WeightBuilder(ModelSpec(vocab_size=1003, seed=2)).build()
    assert first.keys() == second.keys() == other.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    embed = "model.embed_tokens.weight"
    assert not torch.equal(first[embed], other[embed])


@pytest.mark.parametrize("vocab_size", [1003, 248320])
def test_active_ids(vocab_size: int) -> None:
    """Red when the first or last id, or a byte, cannot be generated, or when a special
    token can."""
    spec = ModelSpec(vocab_size=vocab_size)
    ids = active_ids(spec).tolist()
    assert len(set(ids)) == len(ids) == spec.num_active
    assert {0, 255, vocab_size - 1} <= set(ids)
    assert not set(spec.special_ids.values()) & set(ids)
    assert max(ids) < vocab_size


def test_tokenizer(tmp_path: Path) -> None:
    """Red when text does not round-trip, when an id does not decode, or when the chat
    template is lost."""
    spec = SPECS["uneven"]
    tokenizer = AutoTokenizer.from_pretrained(write_model(spec, tmp_path / "model"))
    text = "Grüße, 世界!\n  two  spaces"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) == spec.vocab_size
    pieces = [tokenizer.decode([i]) for i in range(262, spec.vocab_size)]
    assert len(set(pieces)) == len(pieces) and all(pieces)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat == "<user>hi<assistant>"
    assert tokenizer.eos_token_id == spec.special_ids["<eos>"]


def test_folder_is_kept_or_replaced(tmp_path: Path) -> None:
    """Red when a model is made again for nothing, or kept for another spec."""
    folder = tmp_path / "model"
    write_model(SPECS["uneven"], folder)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    write_model(SPECS["uneven"], folder)
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    write_model(SPECS["tied"], folder)
    assert read_spec(folder) == SPECS["tied"]
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_foreign_folder_is_left_alone(tmp_path: Path) -> None:
    """Red when making a model deletes somebody's folder."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="--out"):
        write_model(SPECS["uneven"], tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (["--vocab-size", "100"], "vocab size 100"),
        (["--vocab-size", "1003", "--tp", "3"], "TP size 3"),
        (["--num-heads", "6"], "hidden size 128"),
        (["--num-kv-heads", "3"], "8 heads"),
        (["--intermediate-size", "128"], "intermediate size 128"),
        (["--two-classes"], "intermediate size 384"),
    ],
)
def test_bad_options(
    args: list[str], names: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Red when a size that cannot work gives a traceback or a half-made folder."""
    assert main(["--out", str(tmp_path / "model"), *args]) == 2
    assert names in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
