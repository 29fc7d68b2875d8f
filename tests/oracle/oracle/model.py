"""What describes a codec: geometry and the fitted parameters of one KV head."""

from dataclasses import dataclass
from typing import Optional

import numpy as np

from oracle import signs

POLAR4, SCALAR4, SCALAR5 = 1, 2, 3
TIER, GRADED = 1, 2
GROUP_SUM, GROUP_HEADS = 1, 2
RHO_KEYS, RHO_CENTROIDS = 1, 2
RANK_MEAN, RANK_GROUP = 1, 2
DROP, MEAN, SKETCH, SAMPLED = 1, 2, 3, 4
QUERIES_HEADS, QUERIES_SUM = 1, 2
OWN, K_PREFIX, NONE = 1, 2, 3


def logit(products, scale, soft_cap=0.0):
    """L of products of queries and keys (8.1), float64."""
    logits = float(scale) * np.asarray(products, np.float64)
    return soft_cap * np.tanh(logits / soft_cap) if soft_cap else logits


@dataclass(frozen=True)
class Geometry:
    kv_heads: int
    head_dim: int
    value_dim: int
    v_source: int = OWN
    codec: int = SCALAR4
    vote: int = GRADED
    rounds: int = 1
    sketch_bits: int = 0
    value_norm: int = 0
    seed: int = 0
    sketch_stride: int = 1  # with sketch_bits only

    @property
    def stride(self):
        """sketch_stride as the library has it: 0 without a sketch."""
        return self.sketch_stride if self.sketch_bits else 0

    @property
    def subspaces(self):
        return self.head_dim // 8

    @property
    def code_planes(self):
        return 4 if self.codec == SCALAR5 else 3

    @property
    def factors(self):
        return self.subspaces if self.codec == POLAR4 else 1


@dataclass(frozen=True)
class Params:
    """One KV head. Signs are shared by all heads; value fields only with a sketch."""

    center: np.ndarray
    balance: np.ndarray
    inv_balance: np.ndarray
    signs_1: np.ndarray
    signs_2: np.ndarray
    value_center: Optional[np.ndarray] = None
    value_signs_1: Optional[np.ndarray] = None
    value_signs_2: Optional[np.ndarray] = None


def make_params(geometry, center, balance, value_center=None):
    """Parameters from stored numbers; r is one float32 division."""
    key = [signs.sign_vector(geometry.seed, t, geometry.head_dim) for t in (1, 2)]
    value = [None, None]
    if geometry.sketch_bits:
        value = [signs.sign_vector(geometry.seed, t, geometry.value_dim) for t in (3, 4)]
    inverse = np.float32(1) / balance
    return Params(center, balance, inverse, *key, value_center, *value)
