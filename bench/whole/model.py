"""A decoder of Llama's shape in plain torch, with random weights: one call of `step` is one token
of every sequence, from embedding to argmax. Attention is somebody else's (attention.py).

Weights that write to the residual stream are small, as trained ones are, so that what a token's
embedding says reaches the last layer. Embeddings have a part in common: of two tokens' queries
`drift` is what differs, and so rows that one step fetches are wanted again by the next."""

from typing import NamedTuple

import torch
import torch.nn.functional as functional

EPSILON = 1e-5


class Geometry(NamedTuple):
    """Llama-3-8B's, unless said otherwise."""

    layers: int = 32
    hidden: int = 4096
    query_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    ffn: int = 14336
    vocabulary: int = 128256
    rope_theta: float = 500000.0

    def layer_shapes(self):
        """[out, in] of a layer's matrices."""
        heads = self.query_heads + 2 * self.kv_heads
        return {
            "qkv": (heads * self.head_dim, self.hidden),
            "output": (self.hidden, self.query_heads * self.head_dim),
            "gate_up": (2 * self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
        }

    def layer_weights(self):
        return sum(rows * columns for rows, columns in self.layer_shapes().values())

    def weights(self):
        """Numbers held: layers, embedding, head, norms."""
        norms = (2 * self.layers + 1) * self.hidden
        return self.layers * self.layer_weights() + 2 * self.vocabulary * self.hidden + norms

    def weights_read(self):
        """Of these, what a step reads whole: all but the embedding."""
        return self.weights() - self.vocabulary * self.hidden


class Layer:
    def __init__(self, geometry, make):
        small = (2 * geometry.layers) ** -0.5
        for name, shape in geometry.layer_shapes().items():
            spread = 0.02 * (small if name in ("output", "down") else 1.0)
            setattr(self, name, make(shape, spread))
        self.attention_norm, self.ffn_norm = (make((geometry.hidden,), 0.0, 1.0) for _ in "af")


class Model:
    def __init__(self, geometry, positions, dtype, device, drift=0.4, seed=0):
        """`positions`: tokens that sequences may come to."""
        self.geometry, self.dtype, self.device = geometry, dtype, device
        chance = torch.Generator(device).manual_seed(seed)

        def make(shape, spread, mean=0.0):
            made = torch.empty(shape, dtype=dtype, device=device)
            return made.normal_(mean, spread, generator=chance) if spread else made.fill_(mean)

        self.layers = [Layer(geometry, make) for _ in range(geometry.layers)]
        common = make((geometry.hidden,), 1.0) * (1 - drift**2) ** 0.5
        self.embedding = make((geometry.vocabulary, geometry.hidden), drift or 1e-6).add_(common)
        self.head = make((geometry.vocabulary, geometry.hidden), 0.02)
        self.norm = make((geometry.hidden,), 0.0, 1.0)
        self.turns = self._turns(positions)

    def _turns(self, positions):
        """[positions, d / 2] complex: pair i turns by position * theta^(-2 i / d)."""
        half = self.geometry.head_dim // 2
        place = {"dtype": torch.float64, "device": self.device}
        speeds = self.geometry.rope_theta ** -(torch.arange(half, **place) / half)
        angles = torch.outer(torch.arange(positions, **place), speeds)
        return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)

    def bytes(self):
        return self.geometry.weights() * self.embedding.element_size() + self.turns.nbytes

    def _norm(self, hidden, weight):
        return functional.rms_norm(hidden, (self.geometry.hidden,), weight, EPSILON)

    def _turned(self, rows, turns):
        """rows [b, heads, d], turns [b, 1, d / 2]."""
        pairs = torch.view_as_complex(rows.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2).to(self.dtype)

    def step(self, tokens, positions, attention):
        """tokens, positions [b] int64, overwritten by those of the next step. Returns logits
        [b, vocabulary]. attention(layer, q [b, hq, d], k [b, h, d], v [b, h, d]): [b, hq, d]."""
        shape, batch = self.geometry, tokens.shape[0]
        hidden = self.embedding[tokens]
        turns = self.turns[positions].unsqueeze(1)
        for number, layer in enumerate(self.layers):
            normed = self._norm(hidden, layer.attention_norm)
            qkv = functional.linear(normed, layer.qkv).view(batch, -1, shape.head_dim)
            turned = self._turned(qkv[:, : -shape.kv_heads], turns)
            query, key = turned[:, : shape.query_heads], turned[:, shape.query_heads :]
            out = attention(number, query, key, qkv[:, -shape.kv_heads :])
            hidden.addmm_(out.reshape(batch, -1), layer.output.t())
            normed = self._norm(hidden, layer.ffn_norm)
            gate, up = functional.linear(normed, layer.gate_up).chunk(2, -1)
            hidden.addmm_(functional.silu(gate).mul_(up), layer.down.t())
        logits = functional.linear(self._norm(hidden, self.norm), self.head)
        tokens.copy_(logits.argmax(-1))
        positions.add_(1)
        return logits
