"""A small Llama and an EAGLE3 draft with a reduced vocabulary, random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from scripts.small_model.spec import ModelSpec
from scripts.small_model.tokenizer import write_tokenizer

VOCAB = ModelSpec(vocab_size=1003)
DRAFT_VOCAB = 500
HIDDEN, HEADS, KV_HEADS, INTERMEDIATE = 64, 4, 2, 128
HEAD_DIM = HIDDEN // HEADS
# EAGLE3 takes hidden states of layers 2, L/2 and L-3, which have to differ.
LAYERS = 8
_SEED = 5


def write_eagle3(folder: Path) -> tuple[Path, Path]:
    """Folders of the target and of the draft."""
    generator = torch.Generator().manual_seed(_SEED)
    embedding = torch.randn(VOCAB.vocab_size, HIDDEN, generator=generator)
    # The head of a token resembles the embedding of another, so that outputs vary.
    successor = torch.randperm(VOCAB.vocab_size, generator=generator)
    head = embedding[successor] + 0.5 * _normal(generator, *embedding.shape, scale=1.0)
    target = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head,
    }
    for index in range(LAYERS):
        target |= _layer(generator, f"model.layers.{index}.", HIDDEN)
    proposed = torch.randperm(VOCAB.vocab_size, generator=generator)[:DRAFT_VOCAB]
    proposed = proposed.sort().values
    draft = {
        "fc.weight": _normal(generator, HIDDEN, 3 * HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
        "midlayer.hidden_norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": head[proposed],
        "d2t": proposed - torch.arange(DRAFT_VOCAB),
        **_layer(generator, "midlayer.", 2 * HIDDEN),
    }
    draft_config = _config("LlamaForCausalLMEagle3", 1)
    draft_config["draft_vocab_size"] = DRAFT_VOCAB
    return (
        _write(folder / "target", _config("LlamaForCausalLM", LAYERS), target),
        _write(folder / "draft", draft_config, draft),
    )


def reference_tokens(target: Path, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens of the target by the transformers library."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(count):
            best = model(ids).logits[0, -1].argmax()
            ids = torch.cat([ids, best.view(1, 1)], dim=1)
    return ids[0, len(prompt) :].tolist()


def _normal(
    generator: torch.Generator, *shape: int, scale: float = 0.1
) -> torch.Tensor:
    return scale * torch.randn(*shape, generator=generator)


def _layer(
    generator: torch.Generator, prefix: str, attention_input: int
) -> dict[str, torch.Tensor]:
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, attention_input),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, attention_input),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, attention_input),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    weights = {name: _normal(generator, *shape) for name, shape in shapes.items()}
    weights["input_layernorm"] = torch.ones(HIDDEN)
    weights["post_attention_layernorm"] = torch.ones(HIDDEN)
    return {f"{prefix}{name}.weight": value for name, value in weights.items()}


def _config(architecture: str, layers: int) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": VOCAB.vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": VOCAB.special_ids["<bos>"],
        "eos_token_id": VOCAB.special_ids["<eos>"],
    }


def _write(
    folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: value.contiguous() for name, value in weights.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_tokenizer(VOCAB, folder)
    return folder
