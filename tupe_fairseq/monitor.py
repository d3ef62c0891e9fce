"""What TensorBoard shows of TUPE at each validation, besides fairseq's curves.

- Images, `positions`: what positions add to the attention logits of each head (the paper's figure 6).
- Scalars, of each layer: how far the logits of a query spread over its keys, by content and by positions. The
  softmax sees differences between keys alone, so the spread is the standard deviation along them.
- Scalar `memory`: the most that the process has held so far.

Shapes: B batch, T tokens, H heads, D model width, d = D / H.
"""

from __future__ import annotations

import logging
import resource
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from .model import TupeModel
from .plots import draw_matrices, position_panels

logger = logging.getLogger(__name__)

FOLDER = "positions"  # beside fairseq's train, train_inner and valid
MAXRSS_PER_MB = 1024  # Linux counts in KiB, getrusage(2)


class Monitor:
    """Writes to a folder of TensorBoard's."""

    def __init__(self, folder: Path) -> None:
        self.writer = SummaryWriter(str(folder / FOLDER))

    def log(self, model: TupeModel, tokens: Tensor, update: int) -> None:
        """Writes what is to be seen after an update.

        Args:
            model: left as it was.
            tokens: (B, T) of real text, without padding.
            update: that number.
        """
        panels, title = position_panels(model)
        try:
            self.writer.add_figure("positions", draw_matrices(panels, title), update)
        except ValueError as error:  # the next update ends the run, and says more
            logger.warning("no picture of positions: %s", error)
        for layer, (content, positions) in enumerate(logit_spreads(model, tokens), start=1):
            self.writer.add_scalar(f"spread of attention logits/content, layer {layer}", content, update)
            if positions and content:
                self.writer.add_scalar(
                    f"spread of attention logits/positions over content, layer {layer}",
                    positions / content,
                    update,
                )
        self.writer.add_scalar("memory/MB at most", peak_memory(), update)
        self.writer.flush()


@torch.no_grad()
def logit_spreads(model: TupeModel, tokens: Tensor) -> list[tuple[float, float]]:
    """How far content, and positions, spread the attention logits of a query over its keys.

    Args:
        model: its mode does not matter: nothing is dropped.
        tokens: (B, T) without padding.

    Returns:
        Of each layer the standard deviations over keys, as means over queries, heads and rows; 0 where a
        variant adds no bias.
    """
    encoder, training = model.encoder, model.training
    model.eval()
    with torch.random.fork_rng(devices=[]):  # dropout draws a seed, if it drops nothing, too
        hiddens = encoder(tokens, return_all_hiddens=True)[1]
    bias = encoder.position_bias(tokens.size(1)).bias  # (H, T, T)
    model.train(training)
    of_positions = 0.0 if bias is None else bias.float().std(dim=-1).mean().item()
    spreads = []
    for layer, x in zip(encoder.layers, hiddens):
        attention: Any = layer.self_attn
        query, key, _ = (
            attention.in_proj(x).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        )  # (B, H, T, d)
        logits = query.float() * attention.scale @ key.float().transpose(-1, -2)  # (B, H, T, T)
        spreads.append((logits.std(dim=-1).mean().item(), of_positions))
    return spreads


def peak_memory() -> float:
    """MB at most so far: of the GPU's tensors where there is a GPU, else of the process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MAXRSS_PER_MB
