"""Attention in tiles that stay in a CPU's cache: nothing of the size (B, H, T, T) ever exists.

A tile is a part of the attention weights: those of some sentences or heads, or some rows of one head's. The
backward pass makes them a second time, and their dropout mask from the same seed, so that nothing that grows
with T x T is kept between the passes (as FlashAttention does on GPUs, arXiv:2205.14135, section 3.1; rows are
whole here, so that the softmax is torch's).

Shapes: B batch, T tokens, H heads, d head width; a tile has m = sentences x heads matrices of r rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .dropout import KeepMasks
from .linear import product

TILE_BYTES = 4 << 20  # of the weights of a tile; 1 to 8 MB are within 5% of each other on 2 cores
PADDED = -1e30  # added to a padded key's logits: their weights are 0, and a row of padding alone stays finite


class Tile(NamedTuple):
    """A part of the weights (B, H, T, T): their first three dimensions; the last is whole."""

    sentences: slice
    heads: slice
    rows: slice


def tiles(batch: int, heads: int, length: int, elements: int) -> Iterator[Tile]:
    """Cuts the weights into tiles of about ``elements``, one row at least, in the order of memory."""
    matrices = max(1, elements // length**2)
    sizes = (
        max(1, matrices // heads),
        _even(heads, min(matrices, heads)),
        _even(length, min(max(1, elements // length), length)),
    )
    for sentences in _slices(batch, sizes[0]):
        for some_heads in _slices(heads, sizes[1]):
            for rows in _slices(length, sizes[2]):
                yield Tile(sentences, some_heads, rows)


def _even(total: int, most: int) -> int:
    """The size of parts, ``most`` at most, that cut a total into as few as possible, of about one size."""
    parts = -(-total // most)
    return -(-total // parts)


def _slices(total: int, size: int) -> Iterator[slice]:
    return (slice(begin, min(begin + size, total)) for begin in range(0, total, size))


class _Weights:
    """The attention weights, one tile at a time, in memory that all tiles share."""

    def __init__(self, query: Tensor, key: Tensor, bias: Tensor | None, padding: Tensor | None) -> None:
        self.query, self.key, self.bias = query, key, bias
        batch, heads, self.length, _ = query.shape
        self.tiles = list(tiles(batch, heads, self.length, TILE_BYTES // query.element_size()))
        self.largest = max(prod(self.shape(tile)) for tile in self.tiles)
        self.memory = self.new_memory()
        self.padded = None
        if padding is not None:
            self.padded = padding[:, None, None].to(query.dtype)  # (B, 1, 1, T), 1 at padding

    def new_memory(self) -> Tensor:
        """Room for any tile."""
        return self.query.new_empty(self.largest)

    def shape(self, tile: Tile) -> tuple[int, int, int, int]:
        """(sentences, heads, r, T)"""
        sentences, heads, rows = (part.stop - part.start for part in tile)
        return sentences, heads, rows, self.length

    def room(self, tile: Tile, memory: Tensor) -> Tensor:
        """(m, r, T) at the begin of the memory."""
        sentences, heads, *shape = self.shape(tile)
        return memory[: prod(self.shape(tile))].view(sentences * heads, *shape)

    def of(self, tile: Tile) -> Tensor:
        """softmax(Q K' + bias) of a tile, (m, r, T)."""
        weights = self.room(tile, self.memory)
        torch.bmm(_matrices(self.query[tile]), _matrices(self.key[tile[:2]]).transpose(1, 2), out=weights)
        logits = weights.view(self.shape(tile))
        if self.bias is not None:
            logits.add_(self.bias[tile[1:]])
        if self.padded is not None:
            logits.add_(self.padded[tile.sentences], alpha=PADDED)
        return torch.softmax(weights, dim=-1, out=weights)

    def backward(self, tile: Tile, weights: Tensor, grad: Tensor) -> Tensor:
        """Turns the gradient of the weights, in place, into that of the logits: (m, r, T)."""
        torch.ops.aten._softmax_backward_data.out(grad, weights, -1, grad.dtype, grad_input=grad)
        if self.padded is not None:  # it is 0 at padding, but in sentences of padding alone
            grad.view(self.shape(tile)).mul_(1 - self.padded[tile.sentences])
        return grad


def _matrices(x: Tensor) -> Tensor:
    """(sentences, heads, ...) as (m, ...), a view: with several sentences in a tile, it has all heads."""
    return x.flatten(0, 1)


def _collect(total: Tensor, parts: Tensor, first: bool) -> None:
    """Adds up sentences (sentences, heads, r, T) in ``total``, which holds nothing yet at the first."""
    part = parts[0] if len(parts) == 1 else parts.sum(0)  # a sum of one would be a copy
    if first:
        total.copy_(part)
    else:
        total.add_(part)


class TiledAttention(torch.autograd.Function):
    """``attention.reference`` for float32 and float64 on a CPU, with the same arguments."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        padding: Tensor | None,
        dropout: float,
    ) -> Tensor:
        """Returns (B, H, T, d)."""
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        weights, masks = _Weights(query, key, bias, padding), KeepMasks(dropout)
        memory = weights.new_memory()
        out = torch.empty_like(value)
        for tile in weights.tiles:
            kept = weights.of(tile)
            if dropout:
                kept.mul_(masks.fill(weights.room(tile, memory)))
            out[tile] = product(kept, _matrices(value[tile[:2]])).view_as(out[tile])
        ctx.save_for_backward(query, key, value, bias, padding)
        ctx.dropout, ctx.seed = dropout, masks.seed
        return out.mul_(1 / (1 - dropout))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the arguments, that of the bias summed over the sentences."""
        query, key, value, bias, padding = ctx.saved_tensors
        grad = grad.contiguous() * (1 / (1 - ctx.dropout))  # of the kept weights times the values
        weights, masks = _Weights(query, key, bias, padding), KeepMasks(ctx.dropout, ctx.seed)
        memory, mask_memory = weights.new_memory(), weights.new_memory()
        transposed_query, transposed_grad = _transposed(query), _transposed(grad)
        grad_query = torch.empty_like(query)
        grad_key, grad_value = torch.zeros_like(transposed_query), torch.zeros_like(transposed_grad)
        grad_bias = None if bias is None else torch.empty_like(bias)
        for tile in weights.tiles:
            some, columns = tile[:2], (*tile[:2], slice(None), tile.rows)
            w, g = weights.of(tile), weights.room(tile, memory)
            mask = masks.fill(weights.room(tile, mask_memory)) if ctx.dropout else None
            kept = w if mask is None else torch.mul(w, mask, out=g)
            _matrices(grad_value[some]).add_(product(_matrices(transposed_grad[columns]), kept))
            torch.bmm(_matrices(grad[tile]), _matrices(value[some]).transpose(1, 2), out=g)
            if mask is not None:
                g.mul_(mask)
            g = weights.backward(tile, w, g)
            if grad_bias is not None:
                _collect(grad_bias[tile[1:]], g.view(weights.shape(tile)), first=tile.sentences.start == 0)
            grad_query[tile] = product(g, _matrices(key[some])).view_as(grad_query[tile])
            _matrices(grad_key[some]).add_(product(_matrices(transposed_query[columns]), g))
        return grad_query, grad_key.transpose(2, 3), grad_value.transpose(2, 3), grad_bias, None, None


def _transposed(x: Tensor) -> Tensor:
    """(B, H, T, d) as (B, H, d, T), in that order of memory."""
    return x.transpose(2, 3).contiguous()
