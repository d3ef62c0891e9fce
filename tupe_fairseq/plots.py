"""Pictures: learned position biases, and loss curves from TensorBoard logs.

python -m tupe_fairseq.plots positions CHECKPOINT OUT.png
python -m tupe_fairseq.plots curves RUN... -o OUT.png
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from . import checkpoints
from .curves import has_curve, read_curve
from .model import TupeModel, load_model
from .vocabulary import BOS, SPECIALS


def plot_curves(runs: list[str], out: str, unigram_bits: float | None = None) -> None:
    """Loss against updates of one or several runs; unigram_bits is drawn as a level to compare with.

    Several runs (as in figure 5a of the paper) are named by their folders.
    """
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    names = [Path(run).name for run in runs]
    if len(set(names)) < len(runs):
        names = runs
    # matplotlib leaves names that begin with "_" out of the legend, and reads formulas between "$".
    names = [f"./{name}" if name.startswith("_") else name for name in names]
    names = [name.replace("$", r"\$") for name in names]
    for i, run in enumerate(runs):
        training, validation = ("training", "validation") if len(runs) == 1 else (None, names[i])
        if has_curve(run, "train_inner"):  # not of a run shorter than its --log-interval
            axes.plot(*read_curve(run, "train_inner"), color=f"C{i}", alpha=0.35, label=training)
        axes.plot(*read_curve(run), color=f"C{i}", marker="o", markersize=3, label=validation)
    if unigram_bits is not None:
        axes.axhline(unigram_bits, color="0.4", linestyle="--", linewidth=1)
        axes.annotate(
            f"entropy of single tokens: {unigram_bits:.2f}",
            (1, unigram_bits),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 4),
            textcoords="offset points",
            ha="right",
            color="0.3",
        )
    title = "Loss" if len(runs) == 1 else "Validation loss (faint: training)"
    axes.set(title=title, xlabel="update", ylabel="bits a target (regression: squared error)")
    if unigram_bits is not None:
        axes.set(title="Masked language modelling", ylabel="loss (bits a masked token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(out, dpi=150, format="png")
    plt.close(figure)


def position_terms(model: TupeModel, length: int) -> np.ndarray:
    """What positions alone add to the logits of every layer: (H, T, T) for T = `length`."""
    positions = model.encoder.position_bias
    bias = positions(length).bias
    if bias is None and positions.absolute is not None:  # BERT-A^d: its layers compute all four terms
        bias = positions.absolute(length)
    return bias.detach().double().cpu().numpy()


def input_correlations(model: TupeModel, length: int, sentences: int = 64) -> dict[str, np.ndarray]:
    """The four terms of the first layer's logits where positions are added to the words (equation 6).

    The LayerNorm in between is linear but for the standard deviation that it divides by, and that is known.
    So the terms add up to the logits, but for products with its bias and the projections' that are left out.

    Args:
        model: of a variant with positions at the input.
        length: T.
        sentences: of `<s>` and random pieces, over which the terms are averaged.

    Returns:
        Term by name: (T, T), the mean over heads and sentences.
    """
    encoder, norm = model.encoder, model.encoder.embed_layer_norm
    assert encoder.embed_positions is not None
    generator = torch.Generator().manual_seed(1)
    device = encoder.embed_tokens.weight.device
    first, last = len(SPECIALS), encoder.cfg.vocab_size - 1  # <mask> is the last
    tokens = torch.randint(first, last, (sentences, length), generator=generator)
    tokens[:, 0] = BOS
    tokens = tokens.to(device)
    with torch.no_grad():
        word, position = encoder.embed_tokens(tokens), encoder.embed_positions.weight[:length]
        deviation = ((word + position).var(dim=-1, correction=0, keepdim=True) + norm.eps).sqrt()  # (B, T, 1)
        w_q, w_k, _ = encoder.state_dict()["layers.0.self_attn.in_proj.weight"].chunk(3)
        parts = {}
        for name, part in (("word", word), ("position", position)):
            normed = (part - part.mean(dim=-1, keepdim=True)) / deviation * norm.weight  # (B, T, D)
            parts[name] = normed @ w_q.T, normed @ w_k.T
        scale = encoder.cfg.scale / encoder.cfg.num_heads  # a product over all of D is the sum over heads
        return {
            f"{one} to {other}": (parts[one][0] * scale @ parts[other][1].transpose(1, 2))
            .mean(dim=0)
            .double()
            .cpu()
            .numpy()
            for one in parts
            for other in parts
        }


def plot_positions(checkpoint: str, out: str) -> None:
    """What a checkpoint's positions do to the attention logits, as matrices on one colour scale.

    Each head's position term (figure 6 of the paper); where positions are added at the input, the four terms
    of the first layer, as means over its heads (figure 2).
    """
    panels, title = position_panels(load_model(checkpoints.load(checkpoint)))
    figure = draw_matrices(panels, title)
    figure.savefig(out, dpi=150, format="png")
    plt.close(figure)


def position_panels(model: TupeModel) -> tuple[dict[str, np.ndarray], str]:
    """Matrices (T, T) by name, and a title; see `plot_positions`."""
    length, variant = model.max_positions(), model.encoder.cfg.variant
    panels: dict[str, np.ndarray] = {}
    if variant.at_input:
        panels |= input_correlations(model, length)
    if variant.untied or variant.relative:
        terms = position_terms(model, length)
        panels |= {f"head {head}": term for head, term in enumerate(terms, start=1)}
    what = "terms of the first layer's logits" if variant.at_input else "position term of each head"
    if variant.at_input and variant.relative:
        what = f"{what}, and relative bias of each head"
    cls = "untied" if variant.reset else "a position like others"
    return panels, f"{model.cfg.variant}: {what}\nrow and column 0 are [CLS], {cls}"


def draw_matrices(panels: dict[str, np.ndarray], title: str) -> Figure:
    """Matrices (T, T) of attention logits side by side, four in a row, on one colour scale around 0."""
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(1.4 + 2.8 * columns, 0.6 + 3 * rows), layout="constrained", squeeze=False
    )
    limit = max(np.abs(panel).max() for panel in panels.values())
    if not np.isfinite(limit):
        raise ValueError("the model's positions have weights that are no finite numbers")
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, (name, panel) in zip(grid.flat, panels.items()):
        image = axes.imshow(panel, cmap="RdBu_r", vmin=-limit, vmax=limit)
        ticks = sorted({0, len(panel) // 2, len(panel) - 1})
        axes.set(title=name, xticks=ticks, yticks=ticks)
    for axes in grid[-1]:
        axes.set_xlabel("key position")
    for axes in grid[:, 0]:
        axes.set_ylabel("query position")
    figure.colorbar(image, ax=grid, shrink=0.8, label="in the attention logit")
    figure.suptitle(title)
    return figure


def main() -> None:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tupe_fairseq.plots", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    positions = commands.add_parser("positions", help="what positions do to the attention logits")
    positions.add_argument("checkpoint")
    positions.add_argument("out")
    curves = commands.add_parser("curves", help="loss against updates")
    curves.add_argument("runs", nargs="+", metavar="RUN", help="SAVE_DIR of a training")
    curves.add_argument("-o", "--out", required=True)
    args = parser.parse_args()
    try:
        if args.command == "positions":
            plot_positions(args.checkpoint, args.out)
        else:
            plot_curves(args.runs, args.out)
    except (ValueError, OSError) as error:
        sys.exit(f"plots: {error}")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
