"""What a step of a benchmark works on, and the matrix products that no model does without.

Shapes: B batch, T tokens, H heads, D model width, d = D / H head width, V vocabulary, N masked positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .config import HEAD_WIDTH, SIZES
from .masked_lm import TupeMaskedLMConfig
from .vocabulary import BOS, PAD, SPECIALS

PARTS = ("forward", "backward", "clip", "optimizer")
MASK_PROB = TupeMaskedLMConfig.mask_prob
BASE = SIZES["base"]

Step = Mapping[str, Callable[[], None]]  # a step's parts by name, to be called in the order of PARTS


@dataclass(frozen=True)
class Work:
    """What a step works on, and the size of the models."""

    batch: int
    length: int
    layers: int = BASE["encoder_layers"]
    width: int = BASE["encoder_embed_dim"]
    vocab: int = 32_769  # with <mask>, its last id
    dropout: float = 0.1  # of attention weights, too
    device: str = "cpu"  # on cuda, weights are bfloat16
    seed: int = 1

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and gradients."""
        return torch.bfloat16 if self.device == "cuda" else torch.float32

    @property
    def masked(self) -> int:
        """N."""
        return max(1, int(MASK_PROB * self.batch * self.length))


def parse_case(case: str, usual: Work) -> Work:
    """The work that a case names, BATCHxLENGTH and perhaps what is not as usual: "1x2048:layers=4,dropout=0".

    Raises:
        ValueError: it is no case.
    """
    size, colon, rest = case.partition(":")
    parsed = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", size)
    options = [re.fullmatch(r"(layers)=([1-9]\d*)|(dropout)=(0(?:\.\d+)?)", word) for word in rest.split(",")]
    if not parsed or (colon and not all(options)):
        raise ValueError(f"{case} is no case: BATCHxLENGTH, then perhaps :layers=N,dropout=P")
    own: dict[str, Any] = {"batch": int(parsed[1]), "length": int(parsed[2])}
    for option in filter(None, options):
        own |= {"layers": int(option[2])} if option[1] else {"dropout": float(option[4])}
    return replace(usual, **own)


def sample(work: Work) -> dict[str, Any]:
    """A batch of random tokens as fairseq's tasks make it: (B, T), N of them ``<mask>``, the first none."""
    random = torch.Generator().manual_seed(work.seed)
    shape = (work.batch, work.length)
    tokens = torch.randint(len(SPECIALS), work.vocab - 1, shape, generator=random)
    tokens[:, 0] = BOS
    free = torch.arange(tokens.numel()).view(shape)[:, 1:].flatten()
    chosen = free[torch.randperm(len(free), generator=random)[: work.masked]]  # (N,)
    target = torch.full(shape, PAD)
    target.view(-1)[chosen] = tokens.view(-1)[chosen]
    tokens.view(-1)[chosen] = work.vocab - 1
    lengths = torch.full((work.batch,), work.length)
    net_input = {"src_tokens": tokens.to(work.device), "src_lengths": lengths.to(work.device)}
    sizes = {"ntokens": tokens.numel(), "nsentences": work.batch}
    return {"net_input": net_input, "target": target.to(work.device), **sizes}


def floor(work: Work) -> Step:
    """Products by torch.mm and torch.bmm into memory that is there already; the layers share it."""
    tokens, width, heads = work.batch * work.length, work.width, work.batch * (work.width // HEAD_WIDTH)

    def matrix(*shape: int) -> Tensor:
        return torch.full(shape, 0.01, dtype=work.dtype, device=work.device)

    # (rows, columns in, columns out) of y = x W', and how often a step has it
    linear = [
        (tokens, width, 3 * width, work.layers),
        (tokens, width, width, work.layers),
        (tokens, width, 4 * width, work.layers),
        (tokens, 4 * width, width, work.layers),
        (work.masked, width, width, 1),
        (work.masked, width, work.vocab, 1),
    ]
    layers = [(matrix(n, i), matrix(o, i), matrix(n, o), times) for n, i, o, times in linear]
    grads = [(torch.empty_like(x), torch.empty_like(w)) for x, w, _, _ in layers]
    head, square = matrix(heads, work.length, HEAD_WIDTH), matrix(heads, work.length, work.length)
    small, large = torch.empty_like(head), torch.empty_like(square)

    def forward() -> None:
        for x, w, y, times in layers:
            for _ in range(times):
                torch.mm(x, w.t(), out=y)
        for _ in range(work.layers):
            torch.bmm(head, head.transpose(1, 2), out=large)  # Q K'
            torch.bmm(square, head, out=small)  # P V

    def backward() -> None:
        for (x, w, y, times), (dx, dw) in zip(layers, grads):
            for _ in range(times):
                torch.mm(y, w, out=dx)
                torch.mm(y.t(), x, out=dw)
        for _ in range(work.layers):
            torch.bmm(head, head.transpose(1, 2), out=large)  # of P
            for _ in range(3):  # of V, Q, K
                torch.bmm(square, head, out=small)

    return {"forward": forward, "backward": backward}
