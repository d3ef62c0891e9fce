"""Self-attention with positions in the logits: softmax(scale Q K' + bias) V.

One function, ``attention``, three implementations: the formula, tiles for CPUs, torch's kernels for GPUs.

Shapes: B batch, T tokens, H heads, D model width, d = D / H head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dropout import dropout as drop
from .linear import Linear
from .positional import PositionTerms
from .tiles import TiledAttention

HALVES = (torch.float16, torch.bfloat16)
PADDED = -3e4  # of a padded key's logits, in the range of float16; their weights are 0


def reference(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, padding: Tensor | None, dropout: float
) -> Tensor:
    """The formula, on any device."""
    logits = query @ key.transpose(2, 3)  # (B, H, T, T)
    if bias is not None:
        logits = logits + bias
    if padding is not None:
        # The lowest finite number, not -inf: a row that is padding throughout stays finite.
        lowest = torch.finfo(logits.dtype).min
        logits = logits.masked_fill(padding[:, None, None, :], lowest)
    wide = torch.float32 if logits.dtype in HALVES else logits.dtype
    weights = logits.softmax(dim=-1, dtype=wide).to(logits.dtype)
    return drop(weights, dropout) @ value


def tiled(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, padding: Tensor | None, dropout: float
) -> Tensor:
    """The same in a CPU's cache, see ``tiles.py``; half precisions are computed in float32."""
    dtype = query.dtype
    if dtype in HALVES:
        query, key, value = query.float(), key.float(), value.float()
        bias = None if bias is None else bias.float()
    return TiledAttention.apply(query, key, value, bias, padding, dropout).to(dtype)


def sdpa(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, padding: Tensor | None, dropout: float
) -> Tensor:
    """torch's own fused kernels, with one bias for all sentences.

    Padding needs no bias for each sentence either: one more column of the queries and keys (the kernels want
    eight) adds ``PADDED`` to the logits of padded keys.
    """
    if padding is not None:
        query = F.pad(query, (0, 1), value=1.0)
        column = padding[:, None, :, None].to(key.dtype) * PADDED
        key = torch.cat([key, column.expand(-1, key.size(1), -1, -1)], dim=3)
        query, key = F.pad(query, (0, 7)), F.pad(key, (0, 7))
    mask = None if bias is None else bias[None]  # (1, H, T, T)
    return F.scaled_dot_product_attention(query, key, value, mask, dropout, scale=1.0)


IMPLEMENTATIONS = {"reference": reference, "tiles": tiled, "sdpa": sdpa}


def choose(impl: str, device: torch.device) -> str:
    """The implementation that "auto" stands for on a device; others stand for themselves.

    Raises:
        ValueError: there is none of that name.
    """
    if impl == "auto":
        return "tiles" if device.type == "cpu" else "sdpa"
    if impl not in IMPLEMENTATIONS:
        raise ValueError(
            f"no implementation {impl} of attention; there are auto, {', '.join(IMPLEMENTATIONS)}"
        )
    return impl


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    padding: Tensor | None = None,
    dropout: float = 0.0,
    impl: str = "auto",
) -> Tensor:
    """Attention of one layer: softmax(Q K' + bias) V, by any implementation.

    Args:
        query: (B, H, T, d), scaled already; the content logits are ``query @ key'``.
        key: (B, H, T, d).
        value: (B, H, T, d).
        bias: (H, T, T), added to the logits of every sentence, or None.
        padding: (B, T), True where a key is padding, or None; no sentence attends there.
        dropout: probability with which an attention weight is dropped.
        impl: a name in IMPLEMENTATIONS, or "auto".

    Returns:
        (B, H, T, d)
    """
    return IMPLEMENTATIONS[choose(impl, query.device)](query, key, value, bias, padding, dropout)


class SelfAttention(nn.Module):
    """Multi-head self-attention that takes the positions of all layers.

    Args:
        embed_dim: D.
        num_heads: H.
        scale: of the products of queries and keys, 1 / sqrt(terms * d).
        dropout: of the attention weights, in training.
        impl: of ``attention``.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, scale: float, dropout: float, impl: str = "auto"
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = scale
        self.dropout = dropout
        self.impl = impl
        self.in_proj = Linear(embed_dim, 3 * embed_dim)  # W_Q, W_K, W_V, stacked
        self.out_proj = Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor, positions: PositionTerms, padding: Tensor | None = None) -> Tensor:
        """Returns (B, T, D) for x (B, T, D) and padding (B, T), True at padding."""
        batch, length, width = x.shape
        packed = self.in_proj(x).view(batch, length, 3, self.num_heads, -1)
        query, key, value = packed.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
        if positions.query is not None:
            query, key = query + positions.query, key + positions.key
        dropout = self.dropout if self.training else 0.0
        out = attention(query * self.scale, key, value, positions.bias, padding, dropout, self.impl)
        return self.out_proj(out.transpose(1, 2).reshape(batch, length, width))  # (B, T, D)
