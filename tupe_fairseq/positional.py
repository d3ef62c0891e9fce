"""Positions in the attention logits (Ke, He, Liu, ICLR 2021, arXiv:2006.15595).

In TUPE, positions never meet the words: they have projections of their own, and their term is computed once
per forward pass and shared by every layer and every sentence.

    v[h, i, j] = (LN(p_i) U_Q)(LN(p_j) U_K) / sqrt(2d)      TUPE-A, equation 7
                 + b[h, bucket(j - i)]                       TUPE-R, equation 8
    bias       = reset(v)                                    [CLS] untied, equations 10 and 11

The other models of the paper's Table 1 are made of the same parts; ``variants.py`` says which has which.

Shapes: T tokens, H heads, D model width, d = D / H head width, P max_positions.

Where the authors' code (guolinke/TUPE, commit 4c64ff7) says more than the paper, this follows the code:
U_Q and U_K have biases, position rows pass a LayerNorm, and the two thetas of the reset are products of
position rows themselves, so that they need no parameters of their own.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .variants import Variant

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


def resize_positions(table: Tensor, max_positions: int, reset: bool) -> Tensor:
    """A position table for another number of positions.

    A shorter one has the first rows of this one, exactly. In a longer one the rows of positions are
    interpolated linearly, the first and the last as they were; the two rows of thetas stay as they are.

    Args:
        table: (P, D), or (P + 1, D) with a reset.
        max_positions: P of the table to return.
        reset: whether the table begins with the rows of theta1 and theta2.

    Raises:
        ValueError: the table has no row of a position to stretch.
    """
    thetas = 2 if reset else 0  # rows; with a reset, position 0 is [CLS] and has no row of its own
    size = max_positions + (1 if reset else 0) - thetas
    positions = table[thetas:]
    if size <= len(positions):
        return table[: thetas + size].clone()
    if not len(positions):
        raise ValueError("a table of one position, [CLS], has no rows that could be stretched to more")
    columns = positions.T[None].double()  # (1, D, P)
    stretched = F.interpolate(columns, size=size, mode="linear", align_corners=True)[0].T
    return torch.cat([table[:thetas], stretched.to(table.dtype)])


class UntiedPositions(nn.Module):
    """Absolute positions with projections of their own: ``(LN(p_i) U_Q)(LN(p_j) U_K)``.

    With a reset the table has P + 1 rows. Row 0 stands for "[CLS] looking at the others" and makes theta1,
    row 1 for "the others looking at [CLS]" and makes theta2; row i + 1 is position i from i = 1 on. Without,
    row i is position i, and there are P.
    """

    def __init__(self, embed_dim: int, num_heads: int, max_positions: int, reset: bool, scale: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.scale = scale
        self.first = 1 if reset else 0  # row of position 0
        self.embedding = nn.Embedding(max_positions + self.first, embed_dim)
        self.layer_norm = nn.LayerNorm(embed_dim, eps=LAYER_NORM_EPS)
        self.query = nn.Linear(embed_dim, embed_dim)  # U_Q
        self.key = nn.Linear(embed_dim, embed_dim)  # U_K

    def forward(self, length: int) -> Tensor:
        """The term of T = ``length`` positions before the reset: (H, T, T)."""
        query, key = self.project(length)
        return query * self.scale @ key.transpose(1, 2)

    def project(self, length: int) -> tuple[Tensor, Tensor]:
        """Queries and keys of T = ``length`` positions, (H, T, d) each, not scaled."""
        return self._project(self.embedding.weight[self.first : self.first + length])

    def thetas(self) -> tuple[Tensor, Tensor]:
        """theta1 and theta2, (H,) each."""
        query, key = self._project(self.embedding.weight[:2])
        theta1, theta2 = (query * self.scale * key).sum(dim=-1).unbind(dim=1)
        return theta1, theta2

    def _project(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.layer_norm(rows)  # (T, D)
        query, key = (
            projection(rows).view(len(rows), self.num_heads, -1).transpose(0, 1)  # (H, T, d)
            for projection in (self.query, self.key)
        )
        return query, key


class RelativePositions(nn.Module):
    """T5's bias ``b[h, bucket(j - i)]``, one learned number a head and bucket (equations 5 and 8).

    With a reset the table has one row more than buckets, because the reset covers the relative term too: the
    bucket that no distance reaches, ``num_buckets / 2``, adds to theta1, and the extra last row to theta2.
    """

    bucket: Tensor

    def __init__(
        self, num_heads: int, max_positions: int, reset: bool, num_buckets: int, max_distance: int
    ) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.embedding = nn.Embedding(num_buckets + 1 if reset else num_buckets, num_heads)
        self.register_buffer("bucket", self.buckets(), persistent=False)

    def buckets(self) -> Tensor:
        """The bucket of every distance, 1 - P ... P - 1: (2P - 1,) int64."""
        distance = torch.arange(1 - self.max_positions, self.max_positions)
        return relative_position_bucket(distance, self.num_buckets, self.max_distance)

    def forward(self, length: int) -> Tensor:
        """The term of T = ``length`` positions before the reset: (H, T, T)."""
        here = slice(self.max_positions - length, self.max_positions + length - 1)
        by_distance = self.embedding(
            self.bucket[here]
        ).T.contiguous()  # (H, 2T - 1), of distance 1 - T ... T - 1
        return by_distance.unfold(1, length, 1).flip(1)  # row i has the T distances from -i on

    def thetas(self) -> tuple[Tensor, Tensor]:
        """What the relative table adds to theta1 and theta2, (H,) each."""
        table = self.embedding.weight
        return table[self.num_buckets // 2], table[self.num_buckets]


class PositionTerms(NamedTuple):
    """What positions add in every layer; None where a variant has none."""

    bias: Tensor | None = None  # (H, T, T), to the logits
    query: Tensor | None = None  # (H, T, d), to the words' queries
    key: Tensor | None = None  # (H, T, d), to the words' keys


class PositionBias(nn.Module):
    """The terms of a variant: for TUPE one bias, the sum of what positions give, [CLS] reset.

    Args:
        variant: which terms there are.
        embed_dim: D, the model width.
        num_heads: H.
        max_positions: P, the longest sequence.
        num_buckets: even number of relative buckets.
        max_distance: from which distance on the last bucket holds.
        scale: of products of width d, 1 / sqrt(terms * d).
    """

    def __init__(
        self,
        variant: Variant,
        embed_dim: int,
        num_heads: int,
        max_positions: int,
        num_buckets: int,
        max_distance: int,
        scale: float,
    ) -> None:
        super().__init__()
        self.variant = variant
        self.max_positions = max_positions
        reset = variant.reset
        self.absolute, self.relative = None, None
        if variant.untied:
            self.absolute = UntiedPositions(embed_dim, num_heads, max_positions, reset, scale)
        if variant.relative:
            self.relative = RelativePositions(num_heads, max_positions, reset, num_buckets, max_distance)

    def forward(self, length: int) -> PositionTerms:
        """The terms of a sequence of T = ``length`` tokens.

        Raises:
            ValueError: the sequence is longer than the position table.
        """
        if length > self.max_positions:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the model's {self.max_positions} positions; "
                "shorten it (--tokens-per-sample) or train with a larger --max-positions"
            )
        query, key, absolute = None, None, self.absolute
        if absolute is not None and self.variant.cross_terms:
            # (x_i W_Q + p_i U_Q)(x_j W_K + p_j U_K), which the layers compute, has all four terms.
            query, key = absolute.project(length)
            absolute = None
        parts = [part for part in (absolute, self.relative) if part is not None]
        if not parts:
            return PositionTerms(None, query, key)
        bias = reduce(torch.add, [part(length) for part in parts])
        if self.variant.reset:
            theta1, theta2 = (reduce(torch.add, rows) for rows in zip(*(part.thetas() for part in parts)))
            bias = reset_cls(bias, theta1, theta2)
        return PositionTerms(bias, query, key)
