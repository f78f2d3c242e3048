"""DeepSeek V3: latent attention, experts, one NextN layer."""

from __future__ import annotations

from .weights import HIDDEN, Model, Tensors, Weights, ones

LAYERS, EXPERTS = 3, 4
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "moe_intermediate_size": 64,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "n_routed_experts": EXPERTS,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    # The CPU's rotary code asks for a scaling.
    "rope_scaling": {
        "type": "yarn",
        "factor": 2,
        "original_max_position_embeddings": 2048,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "num_nextn_predict_layers": 1,
}


def build() -> Model:
    weights = Weights(seed=5)
    embedding, head = weights.embedding_and_head()
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    tensors |= ones("model.norm")
    for i in range(LAYERS + 1):
        prefix, std = f"model.layers.{i}.", 0.1 if i < LAYERS else 0.02
        tensors |= ones(prefix + "input_layernorm", prefix + "post_attention_layernorm")
        tensors |= _latent_attention(weights, prefix + "self_attn.", std)
        if i == 0:
            tensors |= weights.mlp(prefix + "mlp.", std)
            continue
        tensors |= weights.linear(prefix + "mlp.", 0.3, gate=(EXPERTS, HIDDEN))
        bias = weights.normal(EXPERTS, std=0.1)
        tensors[prefix + "mlp.gate.e_score_correction_bias"] = bias
        for name in [f"experts.{j}." for j in range(EXPERTS)] + ["shared_experts."]:
            tensors |= weights.mlp(f"{prefix}mlp.{name}", std, width=64)
    prefix = f"model.layers.{LAYERS}."
    tensors |= ones(prefix + "enorm", prefix + "hnorm", prefix + "shared_head.norm")
    tensors[prefix + "eh_proj.weight"] = weights.mixing(0.7, 0.3)
    tensors[prefix + "shared_head.head.weight"] = head
    tensors[prefix + "embed_tokens.weight"] = embedding
    return Model(CONFIG, tensors)


def _latent_attention(weights: Weights, prefix: str, std: float) -> Tensors:
    rank, rope, heads = 64, 16, 4
    wide = weights.linear(
        prefix, 0.2, q_b_proj=(heads * 48, rank), kv_b_proj=(heads * 64, rank)
    )
    narrow = weights.linear(
        prefix,
        std,
        q_a_proj=(rank, HIDDEN),
        kv_a_proj_with_mqa=(rank + rope, HIDDEN),
        o_proj=(HIDDEN, heads * 32),
    )
    norms = ones(prefix + "q_a_layernorm", prefix + "kv_a_layernorm", width=rank)
    return wide | narrow | norms
