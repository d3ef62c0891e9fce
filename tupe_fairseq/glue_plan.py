"""What a sweep over GLUE is to do: tasks x learning rates x seeds, and the settings that all of it shares."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from .glue import DESCRIPTION_FILE, KNOWN, TASKS, PreparedTask, find_task
from .glue_results import run_name

# What the sweep or its report decides: flags that would undo it are refused.
OURS = {
    "--lr": "RATES has the rates",
    "--seed": "SEEDS has the seeds",
    "--save-dir": "RUNS has a folder for each run",
    "--tensorboard-logdir": "metrics are read from the run's folder",
    "--restore-file": "CHECKPOINT says where runs start",
    "--finetune-from-model": "CHECKPOINT says where runs start",
    "--continue-once": "CHECKPOINT says where runs start",
    "--combine-valid-subsets": "every dev set is validated apart",
    "--combine-val": "every dev set is validated apart",
    "--valid-subset": "every dev set is validated",
    "--disable-validation": "the report is on validations",
    "--best-checkpoint-metric": "the task's first metric chooses",
}


@dataclass(frozen=True)
class Run:
    """One fine-tuning."""

    prepared: PreparedTask
    rate: str
    seed: int
    folder: Path

    @property
    def task(self) -> str:
        """Name of the task."""
        return self.prepared.task.name

    def __str__(self) -> str:
        return f"{self.task}, rate {self.rate}, seed {self.seed}"


def choose(names: Sequence[str], glue_bin: Path) -> tuple[list[PreparedTask], list[str]]:
    """The named tasks, or all of GLUE that can be trained on; and names of those found and left out.

    Raises:
        FileNotFoundError: a folder does not exist, or none holds a task.
        ValueError: a named task is unknown, named twice, or cannot be trained on.
    """
    if not glue_bin.is_dir():
        raise FileNotFoundError(f"no folder {glue_bin}; scripts/prepare_glue.sh -o {glue_bin} makes it")
    for name in names:
        find_task(name, glue_bin / name)
    _check_each_once(names, "the tasks")
    found = {path.parent.name for path in glue_bin.glob(f"*/{DESCRIPTION_FILE}")}
    asked = [PreparedTask.load(glue_bin / name, name) for name in names or [n for n in TASKS if n in found]]
    able = [prepared for prepared in asked if {"train", "valid"} <= prepared.rows.keys()]
    if names and len(able) < len(asked):
        unable = next(prepared for prepared in asked if prepared not in able).task.name
        raise ValueError(f"{glue_bin / unable} lacks rows to train on, or to validate on; leave {unable} out")
    if not able:
        raise FileNotFoundError(f"{glue_bin} has no task to train on; scripts/prepare_glue.sh makes them")
    left_out = [] if names else sorted(found - {prepared.task.name for prepared in able})
    return able, left_out


def parse_rates(text: str) -> list[str]:
    """Learning rates, each as it names a folder: 2e-05 and 0.00002 are 2e-5.

    Raises:
        ValueError: there is none, one is no positive number, or one comes twice.
    """
    words = text.split()
    plain = all(re.fullmatch(r"[0-9.]+([eE]-?[0-9]{1,2})?", word) for word in words)
    try:
        numbers = [Decimal(word) for word in words if plain]
    except InvalidOperation:
        numbers = []
    if not numbers or not all(number > 0 for number in numbers):
        raise ValueError(f"RATES={text!r} are no learning rates; give positive numbers with spaces between")
    rates = [f"{number.normalize():e}" for number in numbers]
    _check_each_once(rates, "RATES")
    return rates


def parse_seeds(text: str) -> list[int]:
    """Seeds.

    Raises:
        ValueError: there is none, one is no whole number from 0 on, or one comes twice.
    """
    words = text.split()
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise ValueError(f"SEEDS={text!r} are no seeds; give whole numbers from 0 on with spaces between")
    seeds = [int(word) for word in words]
    _check_each_once(seeds, "SEEDS")
    return seeds


def _check_each_once(values: Sequence[Any], what: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{what} name {value} twice")


def plan(tasks: Sequence[PreparedTask], rates: Sequence[str], seeds: Sequence[int], runs: Path) -> list[Run]:
    """All runs, task by task; the first seed with every rate, then the next."""
    return [
        Run(prepared, rate, seed, runs / prepared.task.name / run_name(rate, seed))
        for prepared in tasks
        for seed in seeds
        for rate in rates
    ]


def read_flags(config: Path, given: Sequence[str]) -> dict[str, str]:
    """Flags of a recipe and those given, which win, with their values; without rate and seed.

    Raises:
        OSError: no such recipe.
        ValueError: a word is no flag and no flag's value, or a flag would undo what the sweep does.
    """
    lines = config.read_text(encoding="utf-8").splitlines()
    recipe = _by_flag([word for line in lines for word in line.split("#")[0].split()])
    flags = _by_flag(given)
    for flag, why in OURS.items():
        if flag in flags or (flag in recipe and flag not in ("--lr", "--seed")):
            where = "" if flag in flags else f" (in {config})"
            raise ValueError(f"{flag}{where} is not for a sweep: {why}")
    return {flag: value for flag, value in {**recipe, **flags}.items() if flag not in OURS}


def _by_flag(words: Sequence[str]) -> dict[str, str]:
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            flags[flag] = [value] if equals else []
        elif flags:
            flags[list(flags)[-1]].append(word)
        else:
            raise ValueError(f"{word!r} is no flag of fairseq-train")
    return {flag: " ".join(value) for flag, value in flags.items()}


def fingerprint(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def settings(prepared: PreparedTask, checkpoint: str, flags: Mapping[str, str]) -> dict[str, Any]:
    """Whatever decides how the runs of a task go, but for rate and seed; as JSON gives it back.

    Args:
        checkpoint: its fingerprint, which is the same after a move.
    """
    data = {"rows": dict(prepared.rows), "vocabulary": prepared.vocabulary, "digest": prepared.digest}
    if prepared.task.name not in KNOWN:  # of one's own, which may have changed
        data["task"] = json.loads(json.dumps(asdict(prepared.task)))
    return {"checkpoint": checkpoint, "data": data, "flags": dict(flags)}


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """How two settings differ, in words; empty where they do not."""
    words = {"checkpoint": "another checkpoint", "data": "other data"}
    found = [word for what, word in words.items() if there.get(what) != here[what]]
    old, new = there.get("flags", {}), here["flags"]
    for flag in sorted(old.keys() | new.keys()):
        if old.get(flag) != new.get(flag):
            one, other = (
                f"{flag} {flags[flag]}".strip() if flag in flags else f"no {flag}" for flags in (old, new)
            )
            found.append(f"{one} there, {other} here")
    return "; ".join(found)
