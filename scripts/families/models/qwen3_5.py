"""Qwen3.5: three linear-attention layers to one of gated full attention, and MTP."""

from __future__ import annotations

from .weights import HIDDEN, Model, Tensors, Weights, ones, zeros

TYPES = ["linear_attention"] * 3 + ["full_attention"]
HEADS, KV_HEADS, DIM = 4, 2, 32
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, CONV = 2, 4, 16, 24, 4
KEYS, VALUES = KEY_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM
CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "num_hidden_layers": len(TYPES),
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": DIM,
    "layer_types": TYPES,
    "full_attention_interval": len(TYPES),
    "linear_conv_kernel_dim": CONV,
    "linear_key_head_dim": KEY_DIM,
    "linear_value_head_dim": VALUE_DIM,
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS,
    "attn_output_gate": True,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
    "mtp_num_hidden_layers": 1,
    "num_experts": 0,
}


def build() -> Model:
    weights = Weights(seed=7)
    embedding, head = weights.embedding_and_head()
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    # Norm weights are stored as the difference from 1.
    tensors |= zeros("model.norm", "mtp.norm")
    tensors |= zeros("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden")
    tensors["mtp.fc.weight"] = weights.mixing(0.7, 0.3)
    for i, kind in enumerate(TYPES):
        make = _linear if kind == "linear_attention" else _full
        tensors |= _layer(weights, f"model.layers.{i}.", 0.14, make)
    return Model(CONFIG, tensors | _layer(weights, "mtp.layers.0.", 0.02, _full))


def _layer(weights: Weights, prefix: str, std: float, make) -> Tensors:
    norms = zeros(prefix + "input_layernorm", prefix + "post_attention_layernorm")
    mlp = weights.mlp(prefix + "mlp.", 0.6 * std)
    return norms | mlp | make(weights, prefix, std)


def _full(weights: Weights, prefix: str, std: float) -> Tensors:
    """The query projection carries the output gate."""
    prefix += "self_attn."
    projections = weights.linear(
        prefix,
        std,
        q_proj=(2 * HEADS * DIM, HIDDEN),
        k_proj=(KV_HEADS * DIM, HIDDEN),
        v_proj=(KV_HEADS * DIM, HIDDEN),
        o_proj=(HIDDEN, HEADS * DIM),
    )
    return projections | zeros(prefix + "q_norm", prefix + "k_norm", width=DIM)


def _linear(weights: Weights, prefix: str, std: float) -> Tensors:
    prefix += "linear_attn."
    tensors = weights.linear(
        prefix,
        std,
        in_proj_qkv=(2 * KEYS + VALUES, HIDDEN),
        in_proj_z=(VALUES, HIDDEN),
        in_proj_b=(VALUE_HEADS, HIDDEN),
        in_proj_a=(VALUE_HEADS, HIDDEN),
        out_proj=(HIDDEN, VALUES),
    )
    kernel = weights.normal(2 * KEYS + VALUES, 1, CONV, std=0.4)
    tensors[prefix + "conv1d.weight"] = kernel
    tensors[prefix + "A_log"] = weights.normal(VALUE_HEADS, std=0.5)
    tensors[prefix + "dt_bias"] = weights.normal(VALUE_HEADS, std=0.5)
    return tensors | ones(prefix + "norm", width=VALUE_DIM)
