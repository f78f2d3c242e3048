"""Step 3.5: full and sliding-window layers, three MTP layers with heads of their own.

SGLang's MTP block takes its attention from layer 45 whatever the depth, so that the
target has 45 layers.
"""

from __future__ import annotations

from .weights import HIDDEN, Model, Tensors, Weights, zeros

LAYERS, MTP_LAYERS = 45, 3
ENTRIES = LAYERS + MTP_LAYERS
HEADS, KV_HEADS, DIM = 4, 2, 32
# The MTP layers have to slide.
TYPES = [
    "full_attention" if i % 4 == 0 and i < LAYERS else "sliding_attention"
    for i in range(ENTRIES)
]
CONFIG = {
    "architectures": ["Step3p5ForCausalLM"],
    "model_type": "step3p5",
    "num_hidden_layers": LAYERS,
    "num_nextn_predict_layers": MTP_LAYERS,
    "num_attention_heads": HEADS,
    "num_attention_groups": KV_HEADS,
    "attention_other_setting": {
        "num_attention_heads": HEADS,
        "num_attention_groups": KV_HEADS,
    },
    "head_dim": DIM,
    "layer_types": TYPES,
    "sliding_window": 16,
    "rope_theta": [10000.0] * ENTRIES,
    "rope_scaling": None,
    "partial_rotary_factors": [1.0] * ENTRIES,
    "swiglu_limits": [0.0] * ENTRIES,
    "swiglu_limits_shared": [0.0] * ENTRIES,
    "use_head_wise_attn_gate": False,
    # No layer has experts; these are read all the same.
    "moe_layers_enum": str(10 * LAYERS),
    "moe_num_experts": 2,
    "moe_top_k": 1,
    "moe_intermediate_size": 64,
    "share_expert_dims": 64,
}


def build() -> Model:
    weights = Weights(seed=8)
    embedding, head = weights.embedding_and_head()
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    # Norm weights are stored as the difference from 1.
    tensors |= zeros("model.norm")
    for i in range(LAYERS):
        tensors |= _layer(weights, f"model.layers.{i}.", 0.045)
    for i in range(LAYERS, ENTRIES):
        prefix = f"model.layers.{i}."
        tensors |= _layer(weights, prefix, 0.02)
        tensors |= zeros(*(prefix + n for n in ("enorm", "hnorm", "shared_head.norm")))
        tensors[prefix + "eh_proj.weight"] = weights.mixing(0.7, 0.3)
        noise = weights.normal(*head.shape, std=0.1)
        tensors[prefix + "shared_head.output.weight"] = head + noise
    return Model(CONFIG, tensors)


def _layer(weights: Weights, prefix: str, std: float) -> Tensors:
    attention = weights.linear(
        prefix + "self_attn.",
        std,
        q_proj=(HEADS * DIM, HIDDEN),
        k_proj=(KV_HEADS * DIM, HIDDEN),
        v_proj=(KV_HEADS * DIM, HIDDEN),
        o_proj=(HIDDEN, HEADS * DIM),
    )
    norms = zeros(prefix + "input_layernorm", prefix + "post_attention_layernorm")
    names = (prefix + "self_attn.q_norm", prefix + "self_attn.k_norm")
    return (
        attention
        | norms
        | zeros(*names, width=DIM)
        | weights.mlp(prefix + "mlp.", 0.8 * std)
    )
