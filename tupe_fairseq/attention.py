"""Self-attention with positions in the logits: softmax(scale Q K' + bias) V.

Shapes: B batch, T tokens, H heads, D model width, d = D / H head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .positional import PositionTerms


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None = None,
    padding: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention of one layer, written as the formula.

    Args:
        query: (B, H, T, d), scaled already; the content logits are ``query @ key'``.
        key: (B, H, T, d).
        value: (B, H, T, d).
        bias: (H, T, T), added to the logits of every sentence, or None.
        padding: (B, T), True where a key is padding, or None; no sentence attends there.
        dropout: probability with which an attention weight is dropped.

    Returns:
        (B, H, T, d)
    """
    logits = query @ key.transpose(2, 3)  # (B, H, T, T)
    if bias is not None:
        logits = logits + bias
    if padding is not None:
        # The lowest finite number, not -inf: a row that is padding throughout stays finite.
        lowest = torch.finfo(logits.dtype).min
        logits = logits.masked_fill(padding[:, None, None, :], lowest)
    wide = torch.float32 if logits.dtype in (torch.float16, torch.bfloat16) else logits.dtype
    weights = logits.softmax(dim=-1, dtype=wide).to(logits.dtype)
    return F.dropout(weights, dropout, training=dropout > 0) @ value


class SelfAttention(nn.Module):
    """Multi-head self-attention that takes the positions of all layers.

    Args:
        embed_dim: D.
        num_heads: H.
        scale: of the products of queries and keys, 1 / sqrt(terms * d).
        dropout: of the attention weights, in training.
    """

    def __init__(self, embed_dim: int, num_heads: int, scale: float, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = scale
        self.dropout = dropout
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)  # W_Q, W_K, W_V, stacked
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x: Tensor, positions: PositionTerms, padding: Tensor | None = None) -> Tensor:
        """Returns (B, T, D) for x (B, T, D) and padding (B, T), True at padding."""
        batch, length, width = x.shape
        packed = self.in_proj(x).view(batch, length, 3, self.num_heads, -1)
        query, key, value = packed.permute(2, 0, 3, 1, 4)  # (B, H, T, d) each
        if positions.query is not None:
            query, key = query + positions.query, key + positions.key
        dropout = self.dropout if self.training else 0.0
        out = attention(query * self.scale, key, value, positions.bias, padding, dropout)
        return self.out_proj(out.transpose(1, 2).reshape(batch, length, width))  # (B, T, D)
