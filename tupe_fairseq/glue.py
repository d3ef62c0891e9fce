"""GLUE as a table: a row of `TASKS` holds everything about a task, and everything about GLUE reads it there.

Tasks and metrics: Wang et al., arXiv:1804.07461, table 1. Numbers of rows: the files of gluebenchmark.com.
Epochs: TUPE, arXiv:2006.15595, appendix (fine-tuning). Standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

DESCRIPTION_FILE = "task.json"
LONGEST = 512  # tokens of a row, as in the paper; longer rows are cut


@dataclass(frozen=True)
class Split:
    """One file of a task."""

    file: str
    rows: int | None  # as published
    columns: tuple[str, ...] = ()  # their names, where the file has no header line


@dataclass(frozen=True)
class GlueTask:
    """One task."""

    name: str
    folder: str  # in the GLUE download
    inputs: tuple[str, ...]  # columns of the sentence, or of the two sentences
    label: str  # column of the label; files of test splits have none
    labels: tuple[str, ...]  # names, a name's position is its id; none: the label is a number (regression)
    metrics: tuple[str, ...]  # see sentence_criterion.METRICS; the first chooses the checkpoint
    splits: Mapping[str, Split]  # by fairseq's name for them
    epochs: int
    label_scale: float = 1.0  # numbers lie in 0..label_scale and are divided by it for training

    @property
    def regression(self) -> bool:
        """Whether the label is a number."""
        return not self.labels

    @property
    def outputs(self) -> int:
        """Width of the sentence head."""
        return len(self.labels) or 1


def labelled(split: str) -> bool:
    """Whether the rows of a split have labels: GLUE keeps those of its test rows to itself."""
    return not split.startswith("test")


_COLA_COLUMNS = ("source", "label", "author_label", "sentence")

TASKS = {
    task.name: task
    for task in (
        GlueTask(
            name="CoLA",
            folder="CoLA",
            inputs=("sentence",),
            label="label",
            labels=("0", "1"),
            metrics=("mcc", "accuracy"),
            splits={
                "train": Split("train.tsv", 8551, _COLA_COLUMNS),
                "valid": Split("dev.tsv", 1043, _COLA_COLUMNS),
                "test": Split("test.tsv", 1063),
            },
            epochs=10,
        ),
        GlueTask(
            name="RTE",
            folder="RTE",
            inputs=("sentence1", "sentence2"),
            label="label",
            labels=("entailment", "not_entailment"),
            metrics=("accuracy", "f1"),
            splits={
                "train": Split("train.tsv", 2490),
                "valid": Split("dev.tsv", 277),
                "test": Split("test.tsv", 3000),
            },
            epochs=10,
        ),
        GlueTask(
            name="STS-B",
            folder="STS-B",
            inputs=("sentence1", "sentence2"),
            label="score",
            labels=(),
            metrics=("pearson", "spearman"),
            splits={
                "train": Split("train.tsv", 5749),
                "valid": Split("dev.tsv", 1500),
                "test": Split("test.tsv", 1379),
            },
            epochs=10,
            # The paper's appendix divides by 5, the authors' code does not. Pearson and Spearman are the same
            # for both; the loss is 25 times larger without.
            label_scale=5.0,
        ),
    )
}


WORD_ORDER = GlueTask(  # the quickstart's task, not of GLUE: word_order.py makes it, in the format of CoLA
    name="WordOrder",
    folder="WordOrder",
    inputs=("sentence",),
    label="label",
    labels=("0", "1"),
    metrics=("mcc", "accuracy"),
    splits={
        "train": Split("train.tsv", None, _COLA_COLUMNS),
        "valid": Split("dev.tsv", None, _COLA_COLUMNS),
    },
    epochs=3,
)
KNOWN = {**TASKS, WORD_ORDER.name: WORD_ORDER}  # all that can be prepared, by name


class Row(NamedTuple):
    """A line of a file: the columns that matter, as they stand there."""

    texts: tuple[str, ...]
    label: str | None  # None in test splits


def read_rows(glue_dir: Path, task: GlueTask, split: str) -> Iterator[Row]:
    """The rows of a split, in order. Quotes have no meaning in these files: tabs alone separate.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: a line is not what the table says; the sentence names file and line.
    """
    path = glue_dir / task.folder / task.splits[split].file
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}, which has the {split} rows of {task.name}")
    lines = _read_lines(path)
    columns = task.splits[split].columns or _header(path, lines)
    wanted = task.inputs + ((task.label,) if labelled(split) else ())
    for name in wanted:
        if name not in columns:
            raise ValueError(f"{path}, line 1: the header has no column {name!r} but {', '.join(columns)}")
    places = [columns.index(name) for name in wanted]
    for number, line in lines:
        try:
            fields = _split_line(line, len(columns))
            texts = [fields[place] for place in places]
            label = check_label(texts.pop(), task) if labelled(split) else None
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
        yield Row(tuple(texts), label)


def _read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends (LF or CRLF); a byte-order mark is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{path}, line {number} is not UTF-8: {error}") from None
            yield number, text.removesuffix("\n").removesuffix("\r")


def _header(path: Path, lines: Iterator[tuple[int, str]]) -> tuple[str, ...]:
    for _, line in lines:
        return tuple(line.split("\t"))
    raise ValueError(f"{path} is empty")


def _split_line(line: str, columns: int) -> list[str]:
    if not line:
        raise ValueError("the line is empty")
    fields = line.split("\t")
    if len(fields) != columns:
        raise ValueError(f"{len(fields)} columns in place of {columns}")
    return fields


def check_label(label: str, task: GlueTask) -> str:
    """Returns the label if the task has it.

    Raises:
        ValueError: it is missing or unknown.
    """
    if not label:
        raise ValueError("the label is missing")
    if not task.regression:
        if label not in task.labels:
            raise ValueError(f"label {label!r} is none of {', '.join(task.labels)}")
        return label
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not 0 <= value <= task.label_scale:
        raise ValueError(f"label {label!r} is no number from 0 to {task.label_scale:g}")
    return label


@dataclass(frozen=True)
class PreparedTask:
    """What `task.json` in a prepared folder says."""

    task: GlueTask
    rows: Mapping[str, int]  # found, by split
    vocabulary: str  # fingerprint of the vocabulary that the ids belong to

    def save(self, folder: Path) -> None:
        """Writes `folder/task.json`."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (folder / DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> PreparedTask:
        """Reads `folder/task.json`.

        Raises:
            FileNotFoundError: the folder does not exist or holds no such file.
            ValueError: the file was not written by `save`.
        """
        path = folder / DESCRIPTION_FILE
        if not path.is_file():
            raise FileNotFoundError(f"no {path}; scripts/prepare_glue.sh makes it")
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**stored, "task": _task_from(stored["task"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error!r}); prepare the task again") from None


def _task_from(stored: dict[str, Any]) -> GlueTask:
    """A row of the table from its JSON, in which tuples have become lists."""
    splits = {k: Split(**{**v, "columns": tuple(v["columns"])}) for k, v in stored["splits"].items()}
    tuples = {key: tuple(stored[key]) for key in ("inputs", "labels", "metrics")}
    return GlueTask(**{**stored, **tuples, "splits": splits})
