"""The folder of a sweep: its lock, what was asked for in it, and with which settings.

RUNS/sweep.json
RUNS/TASK/lr-RATE_seed-SEED/   checkpoints, train.log, tensorboard/; result.json when the run is finished
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .glue_plan import Run, differences
from .glue_results import Result, write_json
from .glue_task import NAME
from .save_folder import LAST, damage, newest

LOCK_FILE = ".lock"
SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class Sweep:
    """What was asked for of one task, in one or several commands."""

    settings: Mapping[str, Any]
    runs: Sequence[str]  # names of folders


def load_sweeps(runs: Path) -> dict[str, Sweep]:
    """What was asked for of each task, if a sweep ever worked in that folder.

    Raises:
        ValueError: the file was not written by `save_sweeps`.
    """
    path = runs / SWEEP_FILE
    if not path.is_file():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        sweeps = {task: Sweep(**sweep) for task, sweep in stored.items()}
    except (AttributeError, TypeError, ValueError, RecursionError):
        sweeps = {"": Sweep({}, [])}
    for task, sweep in sweeps.items():
        lists = isinstance(sweep.settings, dict) and isinstance(sweep.runs, list)
        if not NAME.fullmatch(task) or not lists or not all(isinstance(name, str) for name in sweep.runs):
            raise ValueError(f"{path} is damaged; name another RUNS")
    return sweeps


def save_sweeps(runs: Path, sweeps: Mapping[str, Sweep]) -> None:
    """Writes what was asked for."""
    write_json(runs / SWEEP_FILE, {task: asdict(sweep) for task, sweep in sweeps.items()})


@contextmanager
def locked(runs: Path) -> Iterator[int]:
    """The folder, made if need be, for one sweep alone; yields the open lock, which trainings inherit.

    Raises:
        ValueError: another sweep works there.
    """
    runs.mkdir(parents=True, exist_ok=True)
    with (runs / LOCK_FILE).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another sweep works in {runs}; wait for its end, or name another RUNS"
            ) from None
        yield file.fileno()


def register(all_runs: list[Run], by_task: Mapping[str, dict[str, Any]], runs: Path) -> dict[Path, Result]:
    """Enters the runs into RUNS/sweep.json; returns the results of those that are finished, by folder.

    Args:
        by_task: settings.

    Raises:
        ValueError: something in the folder was done with other settings, or by hand.
    """
    sweeps, results = load_sweeps(runs), {}
    for run in all_runs:
        result, sweep = Result.load(run.folder), sweeps.get(run.task)
        for done, where in ((sweep, runs / run.task), (result, run.folder)):
            if done and (what := differences(done.settings, by_task[run.task])):
                raise ValueError(f"{where} was swept with other settings ({what}); name another RUNS")
        if result:
            results[run.folder] = result
        elif (run.folder / LAST).exists() and not (sweep and run.folder.name in sweep.runs):
            raise ValueError(f"{run.folder} holds a training that no sweep started; name another RUNS")
    for task, here in by_task.items():
        asked = [run.folder.name for run in all_runs if run.task == task]
        before = sweeps[task].runs if task in sweeps else []
        sweeps[task] = Sweep(here, list(dict.fromkeys([*before, *asked])))
    save_sweeps(runs, sweeps)
    return results


def make_ready(folder: Path) -> None:
    """Prepares the start of a run, from its last checkpoint or without the logs of an earlier start."""
    last = folder / LAST
    problem = damage(last) if last.exists() else None
    if (last.exists() and not problem) or newest(folder, but=last):
        return  # the training goes on from a whole checkpoint
    if problem:
        print(f"{last} cannot be used ({problem}); that run starts anew", flush=True)
        last.unlink()
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)
