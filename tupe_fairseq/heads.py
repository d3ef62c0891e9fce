"""What stands on the encoder: the masked LM's head, and heads for sentences.

Shapes: B batch, T tokens, D model width, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dropout import Dropout
from .linear import Linear
from .positional import LAYER_NORM_EPS


class LMHead(nn.Module):
    """Dense, GELU, LayerNorm, then the token embeddings as output weights and a bias."""

    def __init__(self, embed_dim: int, vocab_size: int) -> None:
        super().__init__()
        self.dense = Linear(embed_dim, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, features: Tensor, embeddings: Tensor) -> Tensor:
        """Returns logits (..., V) for features (..., D) and token embeddings (V, D)."""
        return F.linear(self.layer_norm(F.gelu(self.dense(features))), embeddings, self.bias)


class SentenceHead(nn.Module):
    """Classification or regression from the first token: dense, tanh, dropout, projection."""

    def __init__(self, embed_dim: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dense = Linear(embed_dim, embed_dim)
        self.dropout = Dropout(dropout)
        self.out_proj = nn.Linear(embed_dim, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Returns (B, classes) for features (B, T, D)."""
        return self.out_proj(self.dropout(torch.tanh(self.dense(features[:, 0]))))
