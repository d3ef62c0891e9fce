"""TUPE as naive loops in float64, written from the formulas; slow, and easy to compare with the paper.

Nothing here comes from the package: parameters are passed as arrays, named as in the paper.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def bucket(distance: int, num_buckets: int = 32, max_distance: int = 128) -> int:
    """T5's bidirectional bucket of key position minus query position, by its description in the T5 paper."""
    half = num_buckets // 2
    exact = half // 2
    steps = abs(distance)
    if steps < exact:
        inside = steps
    else:
        octaves = math.log(steps / exact) / math.log(max_distance / exact)
        inside = min(half - 1, exact + math.floor(octaves * (half - exact) + 1e-9))
    return inside + (half if distance > 0 else 0)


def layer_norm(x: Array, weight: Array, bias: Array) -> Array:
    """LayerNorm of one vector, eps 1e-5."""
    return (x - x.mean()) / math.sqrt(x.var() + 1e-5) * weight + bias


def position_bias(
    length: int,
    table: Array,  # (P + 1, D): row 0 theta1, row 1 theta2, row i + 1 position i
    norm: tuple[Array, Array],
    u_q: tuple[Array, Array],  # weight (D, D) as torch.nn.Linear has it, bias (D,)
    u_k: tuple[Array, Array],
    heads: int,
    relative: Array | None = None,  # (33, H): row 16 theta1, row 32 theta2
) -> Array:
    """Equations 7 to 11: (H, T, T)."""
    width = table.shape[1]
    d = width // heads
    rows = [layer_norm(row, *norm) for row in table]
    query = [u_q[0] @ row + u_q[1] for row in rows]
    key = [u_k[0] @ row + u_k[1] for row in rows]

    def product(h: int, i: int, j: int) -> float:
        part = slice(h * d, (h + 1) * d)
        return sum(query[i][part] * key[j][part]) / math.sqrt(2 * d)

    bias = np.empty((heads, length, length))
    for h in range(heads):
        for i in range(length):
            for j in range(length):
                if i == 0:
                    bias[h, i, j] = product(h, 0, 0) + (relative[16, h] if relative is not None else 0)
                elif j == 0:
                    bias[h, i, j] = product(h, 1, 1) + (relative[32, h] if relative is not None else 0)
                else:
                    b = relative[bucket(j - i), h] if relative is not None else 0
                    bias[h, i, j] = product(h, i + 1, j + 1) + b
    return bias


def attention(
    x: Array,  # (T, D), one sentence
    w_q: tuple[Array, Array],
    w_k: tuple[Array, Array],
    w_v: tuple[Array, Array],
    bias: Array,  # (H, T, T)
    padding: list[bool] | None = None,
) -> Array:
    """Attention of one sentence before the output projection, heads side by side: (T, D)."""
    length, width = x.shape
    heads = bias.shape[0]
    d = width // heads
    query, key, value = ([w[0] @ row + w[1] for row in x] for w in (w_q, w_k, w_v))
    keys = [j for j in range(length) if padding is None or not padding[j]]
    out = np.zeros((length, width))
    for h in range(heads):
        part = slice(h * d, (h + 1) * d)
        for i in range(length):
            logits = [sum(query[i][part] * key[j][part]) / math.sqrt(2 * d) + bias[h, i, j] for j in keys]
            weights = [math.exp(logit - max(logits)) for logit in logits]
            for j, weight in zip(keys, weights):
                out[i, part] += weight / sum(weights) * value[j][part]
    return out
