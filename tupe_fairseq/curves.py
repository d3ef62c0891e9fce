"""Curves out of the TensorBoard logs of a run, and a row of TensorBoard's table of hyperparameters."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams


def has_curve(run: str | Path, subset: str) -> bool:
    """Whether a run has TensorBoard logs of a subset."""
    return any(Path(run, "tensorboard", subset).glob("events.out.tfevents.*"))


def read_curves(run: str | Path, subset: str = "valid") -> dict[str, dict[int, float]]:
    """All scalars in the TensorBoard logs of a run: by name, then by update.

    A resumed run repeats updates; what was written last counts.

    Args:
        run: SAVE_DIR of a training.
        subset: ``train_inner`` (every --log-interval), ``train`` (every epoch) or a validation subset.

    Raises:
        FileNotFoundError: there are no such logs.
    """
    folder = Path(run) / "tensorboard" / subset
    if not has_curve(run, subset):
        raise FileNotFoundError(f"no TensorBoard logs in {folder}; our training scripts write them")
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    names = events.Tags()["scalars"]
    return {name: {event.step: event.value for event in events.Scalars(name)} for name in names}


def read_curve(run: str | Path, subset: str = "valid", key: str = "loss") -> tuple[list[int], list[float]]:
    """Updates and values of one scalar in the TensorBoard logs of a run; see `read_curves`.

    Raises:
        FileNotFoundError: there are no such logs.
    """
    curves = read_curves(run, subset)
    if key not in curves:
        folder = Path(run) / "tensorboard" / subset
        raise FileNotFoundError(f"{folder} holds no '{key}', only {', '.join(curves) or 'no scalars'}")
    return list(curves[key]), list(curves[key].values())


def write_hparams(
    run: str | Path,
    settings: Mapping[str, str | float],
    metrics: Mapping[str, float],
    columns: Collection[str],
) -> None:
    """Writes what `SummaryWriter.add_hparams` does into RUN/tensorboard/hparams, in place of what is there.

    TensorBoard takes the columns of its table from the first run that it finds, so each names all of them;
    `add_hparams` would name its own alone, and hide the metrics of runs of other tasks.

    Args:
        run: SAVE_DIR of a training.
        settings: values by name.
        metrics: of this run.
        columns: names of the metrics of all runs that will be compared.
    """
    folder = Path(run) / "tensorboard" / "hparams"
    shutil.rmtree(folder, ignore_errors=True)
    with SummaryWriter(str(folder)) as writer:
        for summary in hparams(dict(settings), dict.fromkeys([*columns, *metrics], 0.0)):
            writer.file_writer.add_summary(summary)
        for name, value in metrics.items():
            writer.add_scalar(name, value)
