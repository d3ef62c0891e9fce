"""The models as naive loops in float64, written from the formulas; slow, and easy to compare with the paper.

Nothing here comes from the package: parameters are passed as arrays, under the names that the encoder's state
has, and every model of the paper's Table 1 is one line in LOGITS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = Mapping[str, Array]


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


def layer_norm(x: Array, p: Parameters, name: str) -> Array:
    """LayerNorm of one vector, eps 1e-5."""
    return (x - x.mean()) / math.sqrt(x.var() + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(x: Array, p: Parameters, name: str) -> Array:
    """A projection of one vector, with the weight (out, in) as torch.nn.Linear has it."""
    return p[f"{name}.weight"] @ x + p[f"{name}.bias"]


class Positions:
    """What the position parameters of a model give at head h and positions i, j; d is the head width."""

    def __init__(self, p: Parameters, heads: int, d: int) -> None:
        self.p, self.d = p, d
        self.rows = p.get("absolute.embedding.weight", np.zeros((0, heads * d)))
        normed = [layer_norm(row, p, "absolute.layer_norm") for row in self.rows]
        self.query = [linear(row, p, "absolute.query") for row in normed]  # p_i U_Q, by row of the table
        self.key = [linear(row, p, "absolute.key") for row in normed]

    def u_q(self, h: int, row: int) -> Array:
        return self.query[row][h * self.d : (h + 1) * self.d]

    def u_k(self, h: int, row: int) -> Array:
        return self.key[row][h * self.d : (h + 1) * self.d]

    def pp(self, h: int, row_i: int, row_j: int) -> float:
        """(p_i U_Q)(p_j U_K), by rows of the table."""
        return sum(self.u_q(h, row_i) * self.u_k(h, row_j))

    def b(self, h: int, i: int, j: int) -> float:
        return self.p["relative.embedding.weight"][bucket(j - i), h]


# v of equation 9, what positions alone give, by head h and positions i, j. Where [CLS] is reset, the table of
# positions begins with the rows of theta1 and theta2, and b has theirs at 16 and 32 (as the authors' code).
def v_tupe_a(s: Positions, h: int, i: int, j: int) -> float:
    if i == 0:
        return s.pp(h, 0, 0) / math.sqrt(2 * s.d)
    if j == 0:
        return s.pp(h, 1, 1) / math.sqrt(2 * s.d)
    return s.pp(h, i + 1, j + 1) / math.sqrt(2 * s.d)


def v_tupe_r(s: Positions, h: int, i: int, j: int) -> float:
    table = s.p["relative.embedding.weight"]
    if i == 0:
        return v_tupe_a(s, h, i, j) + table[16, h]
    if j == 0:
        return v_tupe_a(s, h, i, j) + table[32, h]
    return v_tupe_a(s, h, i, j) + s.b(h, i, j)


# The attention logit at head h and positions i, j; q is x_i W_Q and k is x_j W_K, of that head.
LOGITS: dict[str, Callable[[Array, Array, Positions, int, int, int], float]] = {
    "bert_a": lambda q, k, s, h, i, j: sum(q * k) / math.sqrt(s.d),
    "bert_r": lambda q, k, s, h, i, j: sum(q * k) / math.sqrt(s.d) + s.b(h, i, j),
    "bert_a_d": lambda q, k, s, h, i, j: (
        (sum(q * k) + sum(q * s.u_k(h, j)) + sum(s.u_q(h, i) * k) + s.pp(h, i, j)) / math.sqrt(4 * s.d)
    ),
    "tupe_a": lambda q, k, s, h, i, j: sum(q * k) / math.sqrt(2 * s.d) + v_tupe_a(s, h, i, j),
    "tupe_r": lambda q, k, s, h, i, j: sum(q * k) / math.sqrt(2 * s.d) + v_tupe_r(s, h, i, j),
    "tupe_a_tie_cls": lambda q, k, s, h, i, j: (
        sum(q * k) / math.sqrt(2 * s.d) + s.pp(h, i, j) / math.sqrt(2 * s.d)
    ),
    "tupe_r_tie_cls": lambda q, k, s, h, i, j: (
        sum(q * k) / math.sqrt(2 * s.d) + s.pp(h, i, j) / math.sqrt(2 * s.d) + s.b(h, i, j)
    ),
}
AT_INPUT = ("bert_a", "bert_r")  # x_i = w_i + p_i, equation 3


def position_logits(variant: str, length: int, p: Parameters, heads: int, width: int) -> Array:
    """What positions alone give, (H, T, T): the logits of words without queries and keys."""
    d = width // heads
    s, none = Positions(p, heads, d), np.zeros(d)
    each = [
        [[LOGITS[variant](none, none, s, h, i, j) for j in range(length)] for i in range(length)]
        for h in range(heads)
    ]
    return np.array(each)


def attention(
    variant: str,
    x: Array,  # (T, D), one sentence
    p: Parameters,  # of the layer's attention
    positions: Parameters,
    heads: int,
    padding: list[bool] | None = None,
) -> Array:
    """Attention of one sentence with its output projection: (T, D)."""
    length, width = x.shape
    d = width // heads
    s = Positions(positions, heads, d)
    query, key, value = np.split(np.array([linear(row, p, "in_proj") for row in x]), 3, axis=1)
    keys = [j for j in range(length) if padding is None or not padding[j]]
    out = np.zeros((length, width))
    for h in range(heads):
        part = slice(h * d, (h + 1) * d)
        for i in range(length):
            logits = [LOGITS[variant](query[i, part], key[j, part], s, h, i, j) for j in keys]
            weights = [math.exp(logit - max(logits)) for logit in logits]
            for j, weight in zip(keys, weights):
                out[i, part] += weight / sum(weights) * value[j, part]
    return np.array([linear(row, p, "out_proj") for row in out])


def encoder(variant: str, tokens: list[int], p: Parameters, layers: int, heads: int, pad: int) -> Array:
    """Features of one sentence, (T, D), by a post-LayerNorm Transformer with BERT's GELU."""
    x = p["embed_tokens.weight"][tokens]
    if variant in AT_INPUT:
        x = np.array([w_i + p_i for w_i, p_i in zip(x, p["embed_positions.weight"])])
    x = np.array([layer_norm(row, p, "embed_layer_norm") for row in x])
    padding = [token == pad for token in tokens]
    x[padding] = 0
    positions = part_of(p, "position_bias")
    for n in range(layers):
        layer = part_of(p, f"layers.{n}")
        attended = attention(variant, x, part_of(layer, "self_attn"), positions, heads, padding)
        x = np.array([layer_norm(row, layer, "self_attn_layer_norm") for row in x + attended])
        inner = [np.array([gelu(value) for value in linear(row, layer, "fc1")]) for row in x]
        fed = np.array([linear(row, layer, "fc2") for row in inner])
        x = np.array([layer_norm(row, layer, "final_layer_norm") for row in x + fed])
    return x


def gelu(x: float) -> float:
    """x times the normal distribution function."""
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def part_of(p: Parameters, name: str) -> dict[str, Array]:
    """The parameters of a module, by their names in it."""
    return {key.removeprefix(f"{name}."): value for key, value in p.items() if key.startswith(f"{name}.")}
