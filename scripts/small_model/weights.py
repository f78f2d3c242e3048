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


def class_ids(spec: ModelSpec) -> dict[str, torch.Tensor]:
    """Active ids of a model with two classes: sorted int64 ids, `easy` and `hard`."""
    if not spec.two_classes:
        raise ValueError("the model has no two classes; make it with --two-classes")
    builder = WeightBuilder(spec)
    return {
        name: builder.ids[builder.hard == value]
        for value, name in enumerate(("easy", "hard"))
    }


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
        # Even shifts of an even count keep the parity, and with it the class.
        step, successors = (2, 4) if spec.two_classes else (1, 2)
        order = torch.randperm(count // step - 1, generator=self.generator)
        self.shifts = [step * (1 + int(shift)) for shift in order[:successors]]
        self.head_rotation = self._head_rotation()

    @property
    def hard(self) -> torch.Tensor:
        """int64 `[active]`: 1 for the active ids that are hard to draft."""
        return self.elements % 2

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
        if spec.two_classes:
            rows[:, spec.class_dim] = spec.embed_scale * (2 * self.hard - 1).double()
        embed[self.ids] = rows.float()
        if spec.tie_word_embeddings:
            return embed, embed
        head = embed.flip(0)
        head[self.ids] = (rows @ self.head_rotation.T).float()
        head[:, spec.const_dim :] = 0
        head[list(spec.special_ids.values())] = 0
        return embed, head

    def _rms(self) -> float:
        """Root mean square of an active token's embedding."""
        spec = self.spec
        filled = spec.planes + 1 + spec.two_classes
        return spec.embed_scale * math.sqrt(filled / spec.hidden_size)

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
            # RMSNorm divides both factors by r, and the residual is not divided:
            # r * r / constant restores it.
            square = self._rms() ** 2 * (1 + noise**2) / spec.embed_scale
            unit = torch.arange(width)
            for place, (map_, constant, by_class) in enumerate(self._maps()):
                plus = 2 * width * place + unit
                units = slice(2 * width * place, 2 * width * (place + 1))
                gate[units] = torch.cat([map_, -map_]).float()
                up[units] = 0
                up[units, spec.const_dim] = constant
                if by_class:
                    up[units, spec.class_dim] = by_class
                down[:, units] = 0
                down[unit, plus] = square
                down[unit, plus + width] = -square
        return {
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up,
            "mlp.down_proj.weight": down,
        }

    def _maps(self) -> list[tuple[torch.Tensor, float, float]]:
        """Linear maps `[2 * planes, H]` that an MLP adds up, each with its weight: a
        constant, and what a token's class adds to it or takes from it."""
        spec = self.spec
        width = 2 * spec.planes
        first, *others = (self._rotation(shift) for shift in self.shifts)
        residual = torch.eye(spec.hidden_size, dtype=torch.float64)
        if not spec.two_classes:
            target = self.head_rotation @ (first + spec.second_weight * others[0])
            maps = [(target - residual, 1.0, 0.0)]
        else:
            easy, hard = spec.easy_second_weight, spec.second_weight
            tied = sum(weight * map_ for weight, map_ in zip(self._ties(), others))
            maps = [
                (self.head_rotation @ first - residual, 1.0, 0.0),
                (self.head_rotation @ tied, (hard + easy) / 2, (hard - easy) / 2),
            ]
        for map_, _, _ in maps:
            map_[:, width:] = 0
        return [(map_[:width], constant, by_class) for map_, constant, by_class in maps]

    def _ties(self) -> list[float]:
        """Weights of the other successors, the first one's being 1, with which all get
        the same logit: embeddings that lie near one another help each other."""
        between = torch.tensor(self.shifts)[:, None] - torch.tensor(self.shifts)
        cosines = self._angles(between.flatten()).cos().mean(dim=1)
        equal = torch.ones(len(self.shifts), dtype=torch.float64)
        weights = torch.linalg.solve(cosines.view(between.shape), equal)
        return (weights[1:] / weights[0]).tolist()

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
