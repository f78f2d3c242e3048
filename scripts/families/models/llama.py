"""A Llama target of 8 layers and three kinds of drafts for it."""

from __future__ import annotations

import torch

from .weights import HIDDEN, VOCAB, Model, Tensors, Weights, ones

HEADS, KV_HEADS = 8, 4
HEAD_DIM = HIDDEN // HEADS
LAYERS, STANDALONE_LAYERS = 8, 6
DRAFT_VOCAB = 500


def config(architecture: str, layers: int) -> dict:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
    }


def layer(weights: Weights, prefix: str, std: float, width: int = HIDDEN) -> Tensors:
    """Attention with inputs of `width`, MLP and the norm between them."""
    attention = weights.linear(
        f"{prefix}self_attn.",
        std,
        q_proj=(HIDDEN, width),
        k_proj=(KV_HEADS * HEAD_DIM, width),
        v_proj=(KV_HEADS * HEAD_DIM, width),
        o_proj=(HIDDEN, HIDDEN),
    )
    mlp = weights.mlp(f"{prefix}mlp.", std)
    return attention | mlp | ones(f"{prefix}post_attention_layernorm")


def target() -> Model:
    weights = Weights(seed=1)
    embedding, head = weights.embedding_and_head()
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    tensors |= ones("model.norm")
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        tensors |= layer(weights, prefix, std=0.075)
        tensors |= ones(f"{prefix}input_layernorm")
    return Model(config("LlamaForCausalLM", LAYERS), tensors)


def standalone() -> Model:
    """The target's first layers, with noise."""
    weights, tensors = Weights(seed=2), {}
    for name, tensor in target().tensors.items():
        parts = name.split(".")
        if parts[1] == "layers" and int(parts[2]) >= STANDALONE_LAYERS:
            continue
        if parts[1] == "layers" and tensor.dim() == 2:
            tensor = tensor + weights.normal(*tensor.shape, std=0.02)
        tensors[name] = tensor
    return Model(config("LlamaForCausalLM", STANDALONE_LAYERS), tensors)


def eagle() -> Model:
    """One layer over the sum of embedding and hidden state; the target's head."""
    weights = Weights(seed=3)
    tensors = layer(weights, "layers.0.", std=0.02)
    tensors["fc.weight"] = weights.mixing(0.5, 0.5)
    tensors["fc.bias"] = torch.zeros(HIDDEN)
    return Model(config("LlamaForCausalLMEagle", 1), tensors)


def eagle3() -> Model:
    """One layer over three hidden states, and a head of its own over half the tokens.

    Its attention looks at the token itself and passes its embedding on, which is the
    only way from there to the output.
    """
    weights = Weights(seed=4)
    kept = weights.permutation(VOCAB)[:DRAFT_VOCAB].sort().values
    tensors = layer(weights, "midlayer.", std=0.02, width=2 * HIDDEN)
    for name, share in {"q_proj": 1.3, "k_proj": 1.3, "v_proj": 1.0}.items():
        tensors[f"midlayer.self_attn.{name}.weight"] = weights.mixing(share, 0.0)
    tensors["midlayer.self_attn.o_proj.weight"] = weights.mixing(1.0)
    tensors |= ones("midlayer.hidden_norm", "midlayer.input_layernorm", "norm")
    tensors["fc.weight"] = weights.mixing(0.0, 0.0, 0.05)
    tensors["lm_head.weight"] = target().tensors["lm_head.weight"][kept]
    tensors["d2t"] = kept - torch.arange(DRAFT_VOCAB)
    is_kept = torch.zeros(VOCAB, dtype=torch.bool)
    is_kept[kept] = True
    tensors["t2d"] = is_kept
    extra = {"draft_vocab_size": DRAFT_VOCAB, "num_key_value_heads": HEADS}
    return Model(config("LlamaForCausalLMEagle3", 1) | extra, tensors)
