"""Accept length of a small model, from its weights alone (no server).

A plain FP32 forward of both parts of the model over whole sequences: slow, short,
and independent of SGLang.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from scripts.small_model.spec import ModelSpec

EPS = 1e-6
ROPE_THETA = 10000.0


@dataclass(frozen=True)
class Generation:
    """Greedy output of one prompt and its verify rounds."""

    output_ids: list[int]
    verify_rounds: int

    @property
    def accept_length(self) -> float:
        """Output tokens per verify round; includes the bonus token."""
        return len(self.output_ids) / self.verify_rounds


class SmallModel:
    """Target and MTP layer of one checkpoint, `[tokens, hidden]` at a time."""

    def __init__(self, spec: ModelSpec, weights: dict[str, torch.Tensor]) -> None:
        self.spec = spec
        self.weights = {name: t.float() for name, t in weights.items()}
        self.embed = self.weights["model.embed_tokens.weight"]
        self.head = self.weights.get("lm_head.weight", self.embed)

    def target(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 `[n]` -> normed hidden states `[n, hidden]`."""
        x = self.embed[ids]
        for layer in range(self.spec.num_layers):
            x = self._block(f"model.layers.{layer}.", x)
        return self._norm("model.norm.weight", x)

    def draft(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Hidden state of position i beside the id of position i + 1."""
        prefix = "model.mtp_layers.0."
        embed = self.embed[ids].clone()
        embed[0] = 0
        both = [
            self._norm(prefix + "hidden_layernorm.weight", hidden),
            self._norm(prefix + "token_layernorm.weight", embed),
        ]
        x = torch.cat(both, dim=-1) @ self.weights[prefix + "input_proj.weight"].T
        return self._norm(prefix + "final_layernorm.weight", self._block(prefix, x))

    def select(self, hidden: torch.Tensor) -> int:
        """Greedy token of one hidden state `[hidden]`."""
        return int(torch.argmax(self.head @ hidden))

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[name], EPS)

    def _block(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        normed = self._norm(prefix + "input_layernorm.weight", x)
        x = x + self._attention(prefix + "self_attn.", normed)
        normed = self._norm(prefix + "post_attention_layernorm.weight", x)
        mlp = {n: self.weights[f"{prefix}mlp.{n}_proj.weight"] for n in _MLP}
        inner = F.silu(normed @ mlp["gate"].T) * (normed @ mlp["up"].T)
        return x + inner @ mlp["down"].T

    def _attention(self, prefix: str, x: torch.Tensor) -> torch.Tensor:
        heads = {"q": self.spec.num_heads}
        heads["k"] = heads["v"] = self.spec.num_kv_heads
        q, k, v = (
            F.linear(
                x,
                self.weights[f"{prefix}{n}_proj.weight"],
                self.weights[f"{prefix}{n}_proj.bias"],
            )
            .view(len(x), heads[n], self.spec.head_dim)
            .transpose(0, 1)
            for n in "qkv"
        )
        out = F.scaled_dot_product_attention(
            _rope(q), _rope(k), v, is_causal=True, enable_gqa=True
        )
        out = out.transpose(0, 1).reshape(len(x), -1)
        return out @ self.weights[prefix + "o_proj.weight"].T


_MLP = ("gate", "up", "down")


def _rope(x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `[heads, n, dim]`, halves rotated together."""
    half = x.shape[-1] // 2
    frequency = ROPE_THETA ** (-torch.arange(half).float() / half)
    angle = torch.arange(x.shape[1]).float()[:, None] * frequency
    low, high = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def generate(
    model: SmallModel, prompt: list[int], num_tokens: int, num_steps: int
) -> Generation:
    """Greedy speculative decoding with a chain of `num_steps` drafts a round."""
    ids = list(prompt)
    ids.append(model.select(model.target(torch.tensor(ids))[-1]))
    rounds = 0
    while len(ids) - len(prompt) < num_tokens:
        hidden = model.target(torch.tensor(ids[:-1]))
        drafts: list[int] = []
        for _ in range(num_steps):
            out = model.draft(hidden, torch.tensor((ids + drafts)[1:]))
            drafts.append(model.select(out[-1]))
            hidden = torch.cat([hidden, out[-1:]])
        verified = model.target(torch.tensor(ids + drafts))
        for step in range(num_steps + 1):
            token = model.select(verified[len(ids) - 1])
            ids.append(token)
            if step == num_steps or token != drafts[step]:
                break
        rounds += 1
    return Generation(ids[len(prompt) :][:num_tokens], rounds)
