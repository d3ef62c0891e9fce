"""The encoder: words at the input, positions in the attention logits (BERT's variants: at the input too).

Shapes: B batch, T tokens, H heads, D model width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .attention import SelfAttention, choose
from .dropout import Dropout
from .linear import Linear
from .positional import LAYER_NORM_EPS, PositionBias, PositionTerms
from .variants import Variant


@dataclass(frozen=True)
class EncoderConfig:
    """The numbers of an encoder; the sizes with names stand in ``config.py``.

    Raises:
        ValueError: a number that no encoder can have.
    """

    variant: Variant
    vocab_size: int
    padding_idx: int
    layers: int
    embed_dim: int
    ffn_dim: int
    num_heads: int
    max_positions: int
    num_buckets: int
    max_distance: int
    dropout: float
    attention_dropout: float
    activation_dropout: float
    attention_impl: str = "auto"
    checkpoint_activations: bool = False  # keep layers' inputs alone for the backward pass

    def __post_init__(self) -> None:
        for name in ("vocab_size", "layers", "embed_dim", "ffn_dim", "num_heads", "max_positions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be a probability below 1, not {getattr(self, name)}")
        choose(self.attention_impl, torch.device("cpu"))  # or raise
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"{self.num_heads} attention heads do not divide the width {self.embed_dim}; "
                "change --encoder-attention-heads or --encoder-embed-dim"
            )
        if self.num_buckets < 4 or self.num_buckets % 2:
            raise ValueError(
                f"relative positions need an even number of at least 4 buckets, not {self.num_buckets}; "
                "change --rel-pos-bins"
            )
        if self.max_distance <= self.num_buckets // 4:
            raise ValueError(
                f"the distance of the last bucket, {self.max_distance}, must exceed the "
                f"{self.num_buckets // 4} exact distances of {self.num_buckets} buckets; change --max-rel-pos"
            )

    @property
    def scale(self) -> float:
        """Of products of queries and keys: 1 / sqrt(terms * d), d = D / H."""
        return (self.variant.terms * self.embed_dim / self.num_heads) ** -0.5


class EncoderLayer(nn.Module):
    """Post-LayerNorm Transformer layer, as BERT's."""

    def __init__(self, cfg: EncoderConfig) -> None:
        super().__init__()
        self.dropout = Dropout(cfg.dropout)
        self.activation_dropout = Dropout(cfg.activation_dropout)
        self.self_attn = SelfAttention(
            cfg.embed_dim, cfg.num_heads, cfg.scale, cfg.attention_dropout, cfg.attention_impl
        )
        self.self_attn_layer_norm = nn.LayerNorm(cfg.embed_dim, eps=LAYER_NORM_EPS)
        self.fc1 = Linear(cfg.embed_dim, cfg.ffn_dim)
        self.fc2 = Linear(cfg.ffn_dim, cfg.embed_dim)
        self.final_layer_norm = nn.LayerNorm(cfg.embed_dim, eps=LAYER_NORM_EPS)

    def forward(self, x: Tensor, positions: PositionTerms, padding: Tensor | None) -> Tensor:
        """Returns (B, T, D) for x (B, T, D) and padding (B, T), True at padding."""
        x = self.self_attn_layer_norm(x + self.dropout(self.self_attn(x, positions, padding)))
        hidden = self.activation_dropout(F.gelu(self.fc1(x)))
        return self.final_layer_norm(x + self.dropout(self.fc2(hidden)))


class TupeEncoder(nn.Module):
    """Token embeddings, then layers that all receive the same position terms."""

    def __init__(self, cfg: EncoderConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.embed_dim, cfg.padding_idx)
        self.embed_layer_norm = nn.LayerNorm(cfg.embed_dim, eps=LAYER_NORM_EPS)
        self.dropout = Dropout(cfg.dropout)
        self.embed_positions = None
        if cfg.variant.at_input:
            self.embed_positions = nn.Embedding(cfg.max_positions, cfg.embed_dim)
        self.position_bias = PositionBias(
            cfg.variant,
            cfg.embed_dim,
            cfg.num_heads,
            cfg.max_positions,
            cfg.num_buckets,
            cfg.max_distance,
            cfg.scale,
        )
        self.layers = nn.ModuleList(EncoderLayer(cfg) for _ in range(cfg.layers))

    def position_tables(self) -> dict[str, bool]:
        """Names of the parameters with a row for each position, and whether rows of thetas come first."""
        tables = {}
        if self.embed_positions is not None:
            tables["embed_positions.weight"] = False
        if self.position_bias.absolute is not None:
            tables["position_bias.absolute.embedding.weight"] = self.cfg.variant.reset
        return tables

    def forward(self, tokens: Tensor, return_all_hiddens: bool = False) -> tuple[Tensor, list[Tensor]]:
        """Encodes token ids, [CLS] at position 0, padding at the end of the shorter rows.

        Args:
            tokens: (B, T) int64.
            return_all_hiddens: keep what every layer gave.

        Returns:
            The features (B, T, D), and a list: empty, or the embeddings and the output of each layer,
            layers + 1 tensors (B, T, D).

        Raises:
            ValueError: T exceeds ``max_positions``.
        """
        length = tokens.size(1)
        positions = self.position_bias(length)  # once for all layers and sentences
        padding = tokens.eq(self.cfg.padding_idx)  # (B, T)
        x = self.embed_tokens(tokens)  # (B, T, D)
        if self.embed_positions is not None:
            x = x + self.embed_positions.weight[:length]
        x = self.dropout(self.embed_layer_norm(x))
        x = x.masked_fill(padding[:, :, None], 0.0)  # (B, T, D)
        hiddens = [x] if return_all_hiddens else []
        padded_keys = padding if padding.any() else None
        for layer in self.layers:
            if self.training and self.cfg.checkpoint_activations:
                x = checkpoint(layer, x, positions, padded_keys, use_reentrant=False)
            else:
                x = layer(x, positions, padded_keys)
            if return_all_hiddens:
                hiddens.append(x)
        return x, hiddens


def init_weights(module: nn.Module) -> None:
    """BERT's initialisation, N(0, 0.02) for matrices and tables and zero for biases, to give to ``apply``.

    The authors' code draws the packed projections and the relative table from it too, and starts the padding
    row at zero.
    """
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
