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
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from . import checkpoints


def has_curve(run: str | Path, subset: str) -> bool:
    """Whether a run has TensorBoard logs of a subset."""
    return any(Path(run, "tensorboard", subset).glob("events.out.tfevents.*"))


def read_curve(run: str | Path, subset: str = "valid", key: str = "loss") -> tuple[list[int], list[float]]:
    """Updates and values of a scalar in the TensorBoard logs of a run.

    Args:
        run: SAVE_DIR of a training.
        subset: ``train_inner`` (every --log-interval), ``train`` (every epoch) or a validation subset.

    Raises:
        FileNotFoundError: there are no such logs.
    """
    folder = Path(run) / "tensorboard" / subset
    if not has_curve(run, subset):
        raise FileNotFoundError(f"no TensorBoard logs in {folder}; a run of scripts/pretrain.sh writes them")
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    if key not in events.Tags()["scalars"]:
        raise FileNotFoundError(f"{folder} holds no '{key}', only {', '.join(events.Tags()['scalars'])}")
    scalars = {event.step: event.value for event in events.Scalars(key)}  # a resumed run repeats steps
    return list(scalars), list(scalars.values())


def plot_curves(runs: list[str], out: str, unigram_bits: float | None = None) -> None:
    """Loss against updates of one or several runs; unigram_bits is drawn as a level to compare with."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for i, run in enumerate(runs):
        name = f"{Path(run).name}: " if len(runs) > 1 else ""
        if has_curve(run, "train_inner"):  # not of a run shorter than its --log-interval
            axes.plot(*read_curve(run, "train_inner"), color=f"C{i}", alpha=0.35, label=f"{name}training")
        axes.plot(*read_curve(run), color=f"C{i}", marker="o", markersize=3, label=f"{name}validation")
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
    axes.set(title="Loss", xlabel="update", ylabel="bits a target (regression: squared error)")
    if unigram_bits is not None:
        axes.set(title="Masked language modelling", ylabel="loss (bits a masked token)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def position_bias(checkpoint: str | Path, length: int | None = None) -> np.ndarray:
    """The position bias that a checkpoint's layers receive: (H, T, T), T the longest length by default."""
    from .model import load_model

    model = load_model(checkpoints.load(checkpoint))
    return model.encoder.position_bias(length or model.max_positions()).bias.detach().double().numpy()


def plot_positions(checkpoint: str, out: str) -> None:
    """The position bias of every head on one colour scale (compare figure 6 of the paper)."""
    bias = position_bias(checkpoint)
    heads, length, _ = bias.shape
    columns = min(heads, 4)
    rows = math.ceil(heads / columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(1.4 + 2.8 * columns, 0.6 + 3 * rows), layout="constrained", squeeze=False
    )
    limit = np.abs(bias).max()
    for axes in grid.flat[heads:]:
        axes.axis("off")
    for head, axes in enumerate(grid.flat[:heads]):
        image = axes.imshow(bias[head], cmap="RdBu_r", vmin=-limit, vmax=limit)
        axes.set_title(f"head {head + 1}")
        axes.set_xticks([0, length // 2, length - 1])
        axes.set_yticks([0, length // 2, length - 1])
    for axes in grid[-1]:
        axes.set_xlabel("key position")
    for axes in grid[:, 0]:
        axes.set_ylabel("query position")
    figure.colorbar(image, ax=grid, shrink=0.8, label="added to the attention logit")
    figure.suptitle("Position bias of each head; row and column 0 are [CLS]")
    figure.savefig(out, dpi=150)
    plt.close(figure)


def main() -> None:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m tupe_fairseq.plots", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    positions = commands.add_parser("positions", help="position bias of every head")
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
        sys.exit(f"{parser.prog}: {error}")
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
