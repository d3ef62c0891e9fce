"""Finished runs of GLUE: what was measured, in `result.json` and in TensorBoard's table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .curves import read_curves, write_hparams
from .glue import BATCH_MEAN, KNOWN, find_task
from .glue_task import GlueTask, labelled
from .whole_file import whole_file

RESULT_FILE = "result.json"


@dataclass(frozen=True)
class Result:
    """A finished run."""

    task: GlueTask
    rate: str
    seed: int
    variant: str
    checkpoint: str  # that it started from
    settings: Mapping[str, Any]  # whatever else decides how it goes
    update: int  # of the best validation
    metrics: Mapping[str, Mapping[str, float]]  # at that update, as fractions: by dev set, then by name
    seconds: float  # of its last start

    def save(self, folder: Path) -> None:
        """Writes the file, whole or not at all."""
        write_json(folder / RESULT_FILE, {**asdict(self), "task": self.task.name})

    @classmethod
    def load(cls, folder: Path) -> Result | None:
        """Reads the file; none, if the run is not finished.

        Raises:
            ValueError: the file was not written by `save`.
        """
        path = folder / RESULT_FILE
        if not path.is_file():
            return None
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            result = cls(**{**stored, "task": find_task(stored["task"], folder)})
            sound = _sound(result)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            sound = False
        if not sound:
            raise ValueError(f"{path} is damaged; delete it, and the run is done again")
        own = (result.task.name, run_name(result.rate, result.seed))
        if own != (folder.parent.name, folder.name):
            raise ValueError(f"{path} is of {'/'.join(own)}; move it there, or delete it")
        return result


def run_name(rate: str, seed: int) -> str:
    """Name of the folder of a run."""
    return f"lr-{rate}_seed-{seed}"


def _sound(result: Result) -> bool:
    """Whether the values of a file are what `save` writes."""
    texts = (result.rate, result.variant, result.checkpoint)
    if type(result.seed) is not int or not isinstance(result.settings, dict):
        return False
    flags = result.settings.get("flags", {})
    names = result.task.metrics
    every = [value for values in result.metrics.values() for value in values.values()]
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(flags, dict)
        and "valid" in result.metrics
        and all(set(names) <= values.keys() for values in result.metrics.values())
        and all(type(value) in (int, float) and math.isfinite(value) for value in every)
    )


def dev_set_name(task: GlueTask, split: str) -> str:
    """What a dev set is called: as the file of its test rows on the leaderboard, MNLI-m and MNLI-mm."""
    test = task.splits.get(split.replace("valid", "test"))
    return Path(test.submission).stem if test and test.submission else task.name


def show_in_tensorboard(run: Path, result: Result, batch_size: str) -> None:
    """Writes the run's row of TensorBoard's table; a second dev set has columns of its own."""
    every = {
        _column(task, split, name)
        for task in (*KNOWN.values(), result.task)
        for split in filter(labelled, task.splits)
        if split != "train"
        for name in task.metrics
    }
    task = result.task
    metrics = {
        _column(task, split, name): value
        for split, values in result.metrics.items()
        for name, value in values.items()
    }
    settings: dict[str, str | float] = {
        **{"task": task.name, "lr": float(result.rate), "seed": result.seed, "variant": result.variant},
        "batch_size": int(batch_size) if batch_size.isdigit() else batch_size,
    }
    write_hparams(run, settings, metrics, sorted(every))


def _column(task: GlueTask, split: str, metric: str) -> str:
    return f"hparam/{metric}" + ("" if split == "valid" else f" ({dev_set_name(task, split)})")


def load_results(runs: Path) -> list[Result]:
    """All finished runs of a folder.

    Raises:
        FileNotFoundError: there are none.
        ValueError: a file is damaged.
    """
    found = (Result.load(path.parent) for path in sorted(runs.glob(f"*/*/{RESULT_FILE}")))
    results = [result for result in found if result]
    if not results:
        raise FileNotFoundError(f"no finished runs in {runs}; scripts/sweep_glue.sh makes them")
    return results


def best_validation(
    run: Path, dev_sets: Sequence[str], metrics: Sequence[str]
) -> tuple[int, dict[str, dict[str, float]]]:
    """The update with the highest first metric on the first dev set, and what was measured there.

    Of equal ones the last counts, as for fairseq's checkpoint_best.pt.

    Args:
        run: its folder.
        dev_sets: their names in fairseq, "valid", "valid1", ...
        metrics: of the task. Their means over batches are taken, too, and the loss.

    Raises:
        FileNotFoundError: the run has no such logs.
        ValueError: a dev set was not validated at that update, or has not that metric.
    """
    curves = {name: read_curves(run, name) for name in dev_sets}
    first = curves[dev_sets[0]].get(metrics[0])
    if not first:
        raise ValueError(f"the TensorBoard logs of {run} have no {metrics[0]} of {dev_sets[0]}")
    update = max(first, key=lambda update: (first[update], update))
    at_best = {
        dev_set: {
            name: round(values[update], 7)  # the logs are in single precision
            for name, values in by_name.items()
            if (name in ("loss", *metrics) or name.startswith(BATCH_MEAN)) and update in values
        }
        for dev_set, by_name in curves.items()
    }
    for dev_set, values in at_best.items():
        if missing := [name for name in metrics if name not in values]:
            raise ValueError(
                f"{run} has no {missing[0]} of {dev_set} at update {update}, its best validation"
            )
    return update, at_best


def write_json(path: Path, content: Any) -> None:
    """Writes a file, whole or not at all."""
    with whole_file(path) as part:
        part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
