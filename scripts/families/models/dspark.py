"""A DSpark draft for the Llama target, without a confidence head.

Its Markov head is the target's embedding and LM head, so that the bias of a step is what
the target makes of the token before it when it looks at nothing else. Bias and base
logits are scaled down, so that the draft is not always sure of itself.
"""

from __future__ import annotations

from . import llama
from .weights import HIDDEN, Model, Weights, ones

BLOCK = 4
"""Tokens of a block."""
TARGET_LAYERS = (1, 4, 6)
BASE_SCALE, BIAS_SCALE = 0.1, 0.08


def draft() -> Model:
    weights, target = Weights(seed=8), llama.target().tensors
    tensors = llama.layer(weights, "layers.0.", std=0.02)
    tensors |= ones("layers.0.input_layernorm", "hidden_norm", "norm")
    tensors["norm.weight"] *= BASE_SCALE
    tensors |= ones(
        "layers.0.self_attn.q_norm", "layers.0.self_attn.k_norm", width=llama.HEAD_DIM
    )
    tensors["fc.weight"] = weights.mixing(*([0.3] * len(TARGET_LAYERS)))
    tensors["markov_head.markov_w1.weight"] = target["model.embed_tokens.weight"]
    tensors["markov_head.markov_w2.weight"] = target["lm_head.weight"] * BIAS_SCALE
    extra = {
        "model_type": "qwen3",
        "block_size": BLOCK,
        "num_target_layers": llama.LAYERS,
        "markov_rank": HIDDEN,
        "markov_head_type": "vanilla",
        "dflash_config": {
            "target_layer_ids": list(TARGET_LAYERS),
            "mask_token_id": 0,
        },
    }
    return Model(llama.config("Qwen3DSparkModel", 1) | extra, tensors)
