"""A self-made byte-level tokenizer: every text encodes, every id decodes."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from scripts.small_model.spec import NUM_BYTES, ModelSpec

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<assistant>' if message['role'] == 'assistant' else '<user>' }}"
    "{{ message['content'] }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def vocabulary(spec: ModelSpec) -> dict[str, int]:
    """Token -> id. The first 256 ids are the byte alphabet; the others name their id."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())[:NUM_BYTES]
    vocab = {token: i for i, token in enumerate(tokens)}
    vocab |= spec.special_ids
    first = NUM_BYTES + len(spec.special_ids)
    # "\u0120" is a leading space in the byte alphabet.
    vocab |= {f"\u0120w{i}": i for i in range(first, spec.vocab_size)}
    return vocab


def write_tokenizer(spec: ModelSpec, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary(spec), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(spec.special_ids))
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "model_max_length": spec.max_positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
