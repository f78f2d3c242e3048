"""MiMo V2 Flash: full and sliding-window layers, sinks, three MTP layers.

Key and value heads differ in width, and the window is shorter than the sequences of
the tests.
"""

from __future__ import annotations

from .weights import HIDDEN, Model, Tensors, Weights, ones

# One entry a layer: 1 for a sliding window.
PATTERN = [0, 1, 1, 0]
WINDOW, MTP_LAYERS = 16, 3
SIZES = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "v_head_dim": 16,
}
CONFIG = {
    "architectures": ["MiMoV2FlashForCausalLM"],
    "model_type": "qwen2",
    "num_hidden_layers": len(PATTERN),
    "num_nextn_predict_layers": MTP_LAYERS,
    "hybrid_layer_pattern": PATTERN,
    "moe_layer_freq": [0] * len(PATTERN),
    # Read even though no layer has experts.
    "n_routed_experts": 1,
    "sliding_window": WINDOW,
    "sliding_window_size": WINDOW,
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "attention_value_scale": 0.7,
    "layernorm_epsilon": 1e-6,
    "partial_rotary_factor": 0.5,
    "swa_rope_theta": 10000.0,
    **SIZES,
    **{f"swa_{name}": size for name, size in SIZES.items()},
}


def build() -> Model:
    weights = Weights(seed=6)
    embedding, head = weights.embedding_and_head()
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    tensors |= ones("model.norm")
    for i, sliding in enumerate(PATTERN):
        prefix = f"model.layers.{i}."
        tensors |= ones(prefix + "input_layernorm", prefix + "post_attention_layernorm")
        tensors |= _attention(weights, prefix + "self_attn.", 0.12, sliding == 1)
        tensors |= weights.mlp(prefix + "mlp.", 0.09)
    for i in range(MTP_LAYERS):
        prefix = f"model.mtp.layers.{i}."
        names = ("input_layernorm", "pre_mlp_layernorm", "enorm", "hnorm")
        tensors |= ones(*(prefix + name for name in names), prefix + "final_layernorm")
        tensors[prefix + "eh_proj.weight"] = weights.mixing(0.7, 0.3)
        tensors |= _attention(weights, prefix + "self_attn.", 0.02, True)
        tensors |= weights.mlp(prefix + "mlp.", 0.02)
    return Model(CONFIG, tensors)


def _attention(weights: Weights, prefix: str, std: float, sink: bool) -> Tensors:
    heads, kv_heads, dim, value_dim = SIZES.values()
    tensors = weights.linear(
        prefix,
        std,
        q_proj=(heads * dim, HIDDEN),
        k_proj=(kv_heads * dim, HIDDEN),
        v_proj=(kv_heads * value_dim, HIDDEN),
        o_proj=(HIDDEN, heads * value_dim),
    )
    if sink:
        tensors[prefix + "attention_sink_bias"] = weights.normal(heads, std=0.5)
    return tensors
