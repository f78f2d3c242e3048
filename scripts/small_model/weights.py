"""Constructed weights, as a checkpoint's `{name: tensor}`."""

from __future__ import annotations

import math

import torch

from scripts.small_model.spec import DTYPES, NUM_BYTES, ModelSpec

Weights = dict[str, torch.Tensor]

# Inactive rows are shorter than active ones: they take part in every
# log-sum-exp and never win.
INACTIVE_SCALE = 0.5
# Attention score std before the softmax: peaked on a few tokens, not on one.
SCORE_STD = 2.0
# Share of a layer's scale that goes to the random part of an MLP or to the
# previous hidden state in the MTP layer: read, but not decisive.
SMALL = 0.1


def active_ids(spec: ModelSpec) -> torch.Tensor:
    """Sorted int64 ids of the tokens that the model generates.

    Holds every byte token, id 0 and V-1, and otherwise a seeded spread over the
    whole vocabulary, so that every TP shard holds winners.
    """
    generator = torch.Generator().manual_seed(spec.seed)
    special = set(spec.special_ids.values())
    fixed = [*range(NUM_BYTES), spec.vocab_size - 1]
    taken = special | set(fixed)
    order = torch.randperm(spec.vocab_size, generator=generator).tolist()
    rest = [i for i in order if i not in taken][: spec.num_active - len(fixed)]
    return torch.tensor(sorted(fixed + rest), dtype=torch.int64)


class WeightBuilder:
    """Builds the tensors of one model; the same spec gives the same bytes."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.ids = active_ids(spec)
        self.generator = torch.Generator().manual_seed(spec.seed + 1)
        count, planes = len(self.ids), spec.planes
        # Group element of each active id, and one character per plane.
        self.elements = torch.randperm(count, generator=self.generator)
        self.characters = (
            1
            + torch.randperm(count - 1, generator=self.generator)[
                torch.arange(planes) % (count - 1)
            ]
        )
        shifts = 1 + torch.randperm(count - 1, generator=self.generator)[:2]
        self.shifts = [int(s) for s in shifts]
        self.head_rotation = self._head_rotation()

    def build(self) -> Weights:
        """All tensors of the checkpoint, in the spec's dtype."""
        spec = self.spec
        embed, head = self._embed_and_head()
        weights = {
            "model.embed_tokens.weight": embed,
            "model.norm.weight": torch.ones(spec.hidden_size),
        }
        if not spec.tie_word_embeddings:
            weights["lm_head.weight"] = head
        for layer in range(spec.num_layers):
            last = layer == spec.num_layers - 1
            weights |= self._layer(f"model.layers.{layer}.", spec.noise, last)
        weights |= self._mtp("model.mtp_layers.0.")
        dtype = DTYPES[spec.dtype]
        return {name: t.to(dtype).contiguous() for name, t in weights.items()}

    def _randn(self, *shape: int, std: float) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator) * std

    def _angles(self, elements: torch.Tensor) -> torch.Tensor:
        """`[n]` group elements -> FP64 `[n, planes]` angles, exact modulo the order."""
        order = len(self.ids)
        turns = (elements[:, None] * self.characters[None, :]) % order
        return turns.double() * (2 * math.pi / order)

    def _rotation(self, shift: int) -> torch.Tensor:
        """`[H, H]` matrix that maps a token's embedding to the one `shift` on."""
        spec = self.spec
        angles = self._angles(torch.tensor([shift]))[0]
        matrix = torch.zeros(spec.hidden_size, spec.hidden_size, dtype=torch.float64)
        even = torch.arange(spec.planes) * 2
        matrix[even, even] = matrix[even + 1, even + 1] = angles.cos()
        matrix[even + 1, even] = angles.sin()
        matrix[even, even + 1] = -angles.sin()
        return matrix

    def _head_rotation(self) -> torch.Tensor:
        """Orthogonal map from embedding space to head space; identity when tied."""
        spec = self.spec
        matrix = torch.eye(spec.hidden_size, dtype=torch.float64)
        if not spec.tie_word_embeddings:
            width = 2 * spec.planes
            random = self._randn(width, width, std=1.0).double()
            matrix[:width, :width] = torch.linalg.qr(random).Q
        return matrix

    def _embed_and_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        spec = self.spec
        width = 2 * spec.planes
        std = INACTIVE_SCALE * spec.embed_scale / math.sqrt(2)
        embed = self._randn(spec.vocab_size, spec.hidden_size, std=std)
        embed[:, spec.const_dim] = INACTIVE_SCALE * spec.embed_scale
        embed[:, spec.const_dim + 1] = 0
        angles = self._angles(self.elements)
        points = torch.stack([angles.cos(), angles.sin()], dim=-1).reshape(-1, width)
        rows = torch.zeros(len(self.ids), spec.hidden_size, dtype=torch.float64)
        rows[:, :width] = points * spec.embed_scale
        rows[:, spec.const_dim] = spec.embed_scale
        embed[self.ids] = rows.float()
        if spec.tie_word_embeddings:
            return embed, embed
        head = embed.flip(0)
        head[self.ids] = (rows @ self.head_rotation.T).float()
        head[:, spec.const_dim] = 0
        head[list(spec.special_ids.values())] = 0
        return embed, head

    def _rms(self) -> float:
        """Root mean square of an active token's embedding."""
        spec = self.spec
        return spec.embed_scale * math.sqrt((spec.planes + 1) / spec.hidden_size)

    def _layer(self, prefix: str, noise: float, maps_successors: bool) -> Weights:
        spec = self.spec
        hidden, dim = spec.hidden_size, spec.head_dim
        query, key = spec.num_heads * dim, spec.num_kv_heads * dim
        score = math.sqrt(SCORE_STD / hidden)
        weights = {
            "input_layernorm.weight": torch.ones(hidden),
            "post_attention_layernorm.weight": torch.ones(hidden),
            "self_attn.q_proj.weight": self._randn(query, hidden, std=score),
            "self_attn.k_proj.weight": self._randn(key, hidden, std=score),
            "self_attn.v_proj.weight": self._randn(key, hidden, std=hidden**-0.5),
            "self_attn.q_proj.bias": self._randn(query, std=SMALL),
            "self_attn.k_proj.bias": self._randn(key, std=SMALL),
            "self_attn.v_proj.bias": self._randn(key, std=SMALL),
        }
        out = self._randn(hidden, query, std=noise * self._rms() * query**-0.5)
        out[spec.const_dim :] = 0
        weights["self_attn.o_proj.weight"] = out
        weights |= self._mlp(noise, maps_successors)
        return {prefix + name: tensor for name, tensor in weights.items()}

    def _mlp(self, noise: float, maps_successors: bool) -> Weights:
        """SwiGLU weights. silu(a) - silu(-a) = a, and `up` reads the constant
        dimension, so pairs of units with gates +a and -a are a linear map of x."""
        spec = self.spec
        hidden, inner, width = spec.hidden_size, spec.intermediate_size, 2 * spec.planes
        gate = self._randn(inner, hidden, std=hidden**-0.5)
        up = self._randn(inner, hidden, std=hidden**-0.5)
        down = self._randn(hidden, inner, std=SMALL * self._rms() * inner**-0.5)
        down[spec.const_dim :] = 0
        if maps_successors:
            first, second = (self._rotation(shift) for shift in self.shifts)
            target = self.head_rotation @ (first + spec.second_weight * second)
            delta = target[:width] - torch.eye(hidden, dtype=torch.float64)[:width]
            delta[:, width:] = 0
            gate[:width] = delta.float()
            gate[width : 2 * width] = -delta.float()
            up[: 2 * width] = 0
            up[: 2 * width, spec.const_dim] = 1
            # RMSNorm divides both factors by r, and the residual is not divided:
            # r * r / constant restores it.
            square = self._rms() ** 2 * (1 + noise**2)
            down[:, : 2 * width] = 0
            unit = torch.arange(width)
            down[unit, unit] = square / spec.embed_scale
            down[unit, width + unit] = -square / spec.embed_scale
        return {
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up,
            "mlp.down_proj.weight": down,
        }

    def _mtp(self, prefix: str) -> Weights:
        spec = self.spec
        hidden = spec.hidden_size
        # Columns: the previous hidden state first, then the token's embedding.
        std = spec.draft_noise * self._rms() * hidden**-0.5
        from_hidden = self._randn(hidden, hidden, std=std)
        from_hidden[spec.const_dim :] = 0
        from_embed = torch.eye(hidden) * self._rms()
        weights = self._layer(prefix, spec.draft_noise, maps_successors=True)
        weights[prefix + "token_layernorm.weight"] = torch.ones(hidden)
        weights[prefix + "hidden_layernorm.weight"] = torch.ones(hidden)
        weights[prefix + "final_layernorm.weight"] = torch.ones(hidden)
        weights[prefix + "input_proj.weight"] = torch.cat(
            [from_hidden, from_embed], dim=1
        )
        return weights
