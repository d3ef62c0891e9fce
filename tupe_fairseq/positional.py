"""The position term of TUPE's attention logits (Ke, He, Liu, ICLR 2021, arXiv:2006.15595).

Positions never meet the words: they have projections of their own, and their term is computed once per
forward pass and shared by every layer and every sentence.

    v[h, i, j] = (LN(p_i) U_Q)(LN(p_j) U_K) / sqrt(2d)      TUPE-A, equation 7
                 + b[h, bucket(j - i)]                       TUPE-R, equation 8
    bias       = reset(v)                                    [CLS] untied, equations 10 and 11

Shapes: T tokens, H heads, D model width, d = D / H head width, P max_positions.

Where the authors' code (guolinke/TUPE, commit 4c64ff7) says more than the paper, this follows the code:
U_Q and U_K have biases, position rows pass a LayerNorm, and the two thetas of the reset are products of
position rows themselves, so that they need no parameters of their own.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LAYER_NORM_EPS = 1e-5  # as the authors' code; 1e-12, BERT's, gives other numbers


def relative_position_bucket(distance: Tensor, num_buckets: int, max_distance: int) -> Tensor:
    """Bucket of a relative position, as T5 has it in its encoder (arXiv:1910.10683, section 2.1).

    Half of the buckets serve keys at or before the query (``distance <= 0``), half those after it. In each
    half the first half is exact, the rest widens logarithmically up to ``max_distance``, and whatever lies
    further shares the last bucket. A distance of 0 has bucket 0, so bucket ``num_buckets / 2``, "0 after",
    cannot occur: TUPE-R gives it to [CLS].

    Args:
        distance: integers of any shape, position of the key minus position of the query.

    Returns:
        int64 of the same shape, in [0, num_buckets).
    """
    half = num_buckets // 2
    exact = half // 2
    steps = distance.abs()
    octaves = torch.log(steps.clamp(min=exact).float() / exact) / math.log(max_distance / exact)
    wide = (exact + (octaves * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(steps < exact, steps, wide) + half * (distance > 0)


def reset_cls(logits: Tensor, theta1: Tensor, theta2: Tensor) -> Tensor:
    """Unties [CLS], the token at position 0, from positions (equations 10 and 11).

    Its row, what [CLS] sees of the others and of itself, becomes theta1; its column below, what the others
    see of [CLS], becomes theta2. Both are constants of the head:

        theta1  theta1  theta1        logits: (H, T, T)
        theta2  v_11    v_12          theta1, theta2: (H,)
        theta2  v_21    v_22          returns (H, T, T), a new tensor
    """
    heads, length, _ = logits.shape
    row = theta1.view(heads, 1, 1).expand(heads, 1, length)
    column = theta2.view(heads, 1, 1).expand(heads, length - 1, 1)
    below = torch.cat([column, logits[:, 1:, 1:]], dim=2)  # (H, T - 1, T)
    return torch.cat([row, below], dim=1)


class UntiedPositions(nn.Module):
    """Absolute positions with projections of their own: ``(LN(p_i) U_Q)(LN(p_j) U_K) / sqrt(2d)``.

    The table has P + 1 rows. Row 0 stands for "[CLS] looking at the others" and makes theta1, row 1 for "the
    others looking at [CLS]" and makes theta2; row i + 1 is position i from i = 1 on.
    """

    def __init__(self, embed_dim: int, num_heads: int, max_positions: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = (2 * embed_dim / num_heads) ** -0.5
        self.embedding = nn.Embedding(max_positions + 1, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.query = nn.Linear(embed_dim, embed_dim)  # U_Q
        self.key = nn.Linear(embed_dim, embed_dim)  # U_K

    def forward(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the term (H, T, T) before the reset, theta1 (H,) and theta2 (H,) for T = ``length``."""
        rows = self.layer_norm(self.embedding.weight[: length + 1])  # (T + 1, D)
        query = self._heads(self.query(rows)) * self.scale  # (H, T + 1, d)
        key = self._heads(self.key(rows))  # (H, T + 1, d)
        theta1, theta2 = (query[:, :2] * key[:, :2]).sum(dim=-1).unbind(dim=1)  # (H,) each
        # Position 0 is [CLS]: what row 1 gives for it here, the reset replaces.
        return query[:, 1:] @ key[:, 1:].transpose(1, 2), theta1, theta2

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(x.size(0), self.num_heads, -1).transpose(0, 1)  # (T, D) -> (H, T, d)


class RelativePositions(nn.Module):
    """T5's bias ``b[h, bucket(j - i)]``, one learned number a head and bucket (equation 8).

    The table has one row more than buckets, because the reset covers the relative term too: the bucket that
    no distance reaches, ``num_buckets / 2``, adds to theta1, and the extra last row adds to theta2.
    """

    bucket: Tensor

    def __init__(self, num_heads: int, max_positions: int, num_buckets: int, max_distance: int) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.cls_row, self.cls_column = num_buckets // 2, num_buckets
        self.embedding = nn.Embedding(num_buckets + 1, num_heads)
        distance = torch.arange(1 - max_positions, max_positions)
        bucket = relative_position_bucket(distance, num_buckets, max_distance)
        self.register_buffer("bucket", bucket, persistent=False)  # (2P - 1,), of distance 1 - P ... P - 1

    def forward(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the term (H, T, T) before the reset, and what it adds to theta1 (H,) and theta2 (H,)."""
        position = torch.arange(length, device=self.bucket.device)
        distance = position[None, :] - position[:, None]  # (T, T): j - i
        bias = self.embedding(self.bucket[distance + self.max_positions - 1])  # (T, T, H)
        table = self.embedding.weight
        return bias.permute(2, 0, 1), table[self.cls_row], table[self.cls_column]


class PositionBias(nn.Module):
    """What TUPE adds to the content logits of every layer: the terms of a variant, summed, [CLS] reset.

    Args:
        embed_dim: D, the model width.
        num_heads: H.
        max_positions: P, the longest sequence.
        relative: with T5's relative bias (TUPE-R) or without (TUPE-A).
        num_buckets: even number of relative buckets.
        max_distance: from which distance on the last bucket holds.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        max_positions: int,
        relative: bool,
        num_buckets: int,
        max_distance: int,
    ) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.absolute = UntiedPositions(embed_dim, num_heads, max_positions)
        self.relative = (
            RelativePositions(num_heads, max_positions, num_buckets, max_distance) if relative else None
        )

    def forward(self, length: int) -> Tensor:
        """Returns the bias of a sequence of ``length`` tokens: (H, T, T).

        Raises:
            ValueError: the sequence is longer than the position table.
        """
        if length > self.max_positions:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the model's {self.max_positions} positions; "
                "shorten it (--tokens-per-sample) or train with a larger --max-positions"
            )
        logits, theta1, theta2 = self.absolute(length)
        if self.relative is not None:
            term, of_theta1, of_theta2 = self.relative(length)
            logits, theta1, theta2 = logits + term, theta1 + of_theta1, theta2 + of_theta2
        return reset_cls(logits, theta1, theta2)
