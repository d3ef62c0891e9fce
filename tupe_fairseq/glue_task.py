"""What a task of sentences is, and how a task of one's own is read from a TOML file. Standard library only.

A row of GLUE's table (`glue.TASKS`) and a task of one's own are the same thing, a `GlueTask`:

    name = "Tickets"                            # of the folder in GLUE_BIN
    inputs = ["subject", "body"]                # columns of the sentence, or of the two sentences
    label = "queue"                             # column of the label
    labels = ["billing", "bug", "praise"]       # or label_scale = 5.0: the label is a number from 0 to 5
    metrics = ["macro_f1", "accuracy"]          # the first chooses the checkpoint
    epochs = 10
    train = "train.tsv"                         # files beside this one, with a header line
    valid = "dev.tsv"                           # chooses the checkpoint; valid1, valid2, ... are reported
    test = "test.tsv"                           # without labels, if there is one
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Names of metrics, which sentence_criterion.METRICS computes; f1 is of the second label.
OF_TWO_LABELS = ("f1", "acc_f1")
OF_LABELS = ("accuracy", "macro_f1", "mcc", *OF_TWO_LABELS)
OF_NUMBERS = ("pearson", "spearman", "pearson_spearman")


@dataclass(frozen=True)
class Split:
    """One file of a task."""

    file: str
    rows: int | None  # as published
    columns: tuple[str, ...] = ()  # their names, where the file has no header line
    malformed: bool = False  # holds lines that are known to be malformed, and that everyone leaves out
    submission: str | None = None  # the leaderboard's name for the predictions


@dataclass(frozen=True)
class GlueTask:
    """One task."""

    name: str
    folder: str  # in the GLUE download
    inputs: tuple[str, ...]  # columns of the sentence, or of the two sentences
    label: str  # column of the label; files of test splits have none
    labels: tuple[str, ...]  # names, a name's position is its id; none: the label is a number (regression)
    metrics: tuple[str, ...]  # see sentence_criterion.METRICS; the first chooses the checkpoint
    splits: Mapping[str, Split]  # by fairseq's name for them; the first "valid" chooses the checkpoint
    epochs: int
    label_scale: float = 1.0  # numbers lie in 0..label_scale and are divided by it for training
    model: str | None = None  # the task whose models read this one, which has no rows to train on

    @property
    def regression(self) -> bool:
        """Whether the label is a number."""
        return not self.labels

    @property
    def outputs(self) -> int:
        """Width of the sentence head."""
        return len(self.labels) or 1

    @property
    def least_tokens(self) -> int:
        """Of a row that holds text: <s> a </s>, or <s> a </s> </s> b </s>."""
        return 3 * len(self.inputs)


def labelled(split: str) -> bool:
    """Whether the rows of a split have labels: GLUE keeps those of its test rows to itself."""
    return not split.startswith("test")


# Fields of a task of one's own, with what must stand there.
FIELDS = {
    "name": "a name of letters, digits, '-' and '_'",
    "inputs": "a list of one or two names of columns",
    "label": "the name of a column",
    "labels": "a list of two or more different names in quotes",
    "label_scale": "the largest number that a label can be, above 0",
    "metrics": "a list of metrics",
    "epochs": "a whole number from 1 to 1000",
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
SPLITS = re.compile(r"train|valid[1-9]?|test[1-9]?")


def read_task(path: Path) -> GlueTask:
    """The task of a TOML file; its data files lie in the same folder.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no TOML, or a field is missing, unknown or not what it must be.
    """
    try:
        row = tomllib.loads(path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
        return own_task(row)
    except (ValueError, RecursionError) as error:  # also what tomllib and decode raise
        raise ValueError(f"{path}: {error}") from None


def own_task(row: Mapping[str, Any]) -> GlueTask:
    """The task of a row of TOML, which may come from anywhere: it becomes flags, paths and columns.

    Raises:
        ValueError: a field is missing, unknown or not what it must be.
    """
    files = {key: value for key, value in row.items() if SPLITS.fullmatch(key)}
    if unknown := sorted(row.keys() - FIELDS.keys() - files.keys()):
        raise ValueError(
            f"unknown field {unknown[0]!r:.60}; there are {', '.join(FIELDS)}, train, valid, test"
        )
    if ("labels" in row) == ("label_scale" in row):
        raise ValueError("give either labels, or label_scale where the label is a number")
    fields = {"labels": (), "label_scale": 1.0, **{k: v for k, v in row.items() if k in FIELDS}}
    for name, what in FIELDS.items():
        if name not in fields:
            raise ValueError(f"the field {name} is missing; it must be {what}")
        if name in row and not _is_sound(name, row[name]):
            raise ValueError(f"{name} = {row[name]!r:.60} is not {what}")
    two, known = len(fields["labels"]) == 2, OF_LABELS if fields["labels"] else OF_NUMBERS
    able = [name for name in known if two or name not in OF_TWO_LABELS]
    if not fields["metrics"] or not set(fields["metrics"]) <= set(able):
        raise ValueError(f"metrics = {fields['metrics']!r:.80}: of this task there are {', '.join(able)}")
    for split, file in files.items():
        if not _is_text(file) or "/" in file or file.startswith("."):
            raise ValueError(f"{split} = {file!r:.60} is no name of a file beside this one")
    if not {"train", "valid"} <= files.keys():
        raise ValueError("name the files of train and valid; test is optional")
    return GlueTask(
        name=fields["name"],
        folder=".",
        inputs=tuple(fields["inputs"]),
        label=fields["label"],
        labels=tuple(fields["labels"]),
        metrics=tuple(fields["metrics"]),
        splits={split: Split(file, None) for split, file in files.items()},
        epochs=fields["epochs"],
        label_scale=float(fields["label_scale"]),
    )


def _is_text(value: object) -> bool:
    """Whether it can stand in a line of TSV, as a name of something."""
    return isinstance(value, str) and 0 < len(value) <= 200 and value.isprintable()


def _is_sound(name: str, value: Any) -> bool:
    """Whether a field is of the kind that `FIELDS` says."""
    if name == "name":
        return isinstance(value, str) and bool(NAME.fullmatch(value))
    if name == "label":
        return _is_text(value)
    if name == "epochs":
        return type(value) is int and 1 <= value <= 1000
    if name == "label_scale":
        return type(value) in (int, float) and 0 < value < 1e9
    several = isinstance(value, (list, tuple)) and all(map(_is_text, value)) and len(set(value)) == len(value)
    least, most = {"inputs": (1, 2), "labels": (2, 1000), "metrics": (1, 10)}[name]
    return several and least <= len(value) <= most
