"""GLUE as a table: a row of `TASKS` holds everything about a task, and everything about GLUE reads it there.

Tasks and metrics: Wang et al., arXiv:1804.07461. Numbers of rows, and files of the leaderboard:
gluebenchmark.com. Epochs: TUPE, arXiv:2006.15595, appendix (fine-tuning). Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .glue_task import FIELDS, GlueTask, Split, own_task, read_task

DESCRIPTION_FILE = "task.json"
BATCH_MEAN = "batch_mean_"  # before a metric: its mean over batches, which the authors' code reports
LONGEST = 512  # tokens of a row, as in the paper; longer rows are cut


def _splits(name: str, train: int, valid: int, test: int) -> dict[str, Split]:
    return {
        "train": Split("train.tsv", train),
        "valid": Split("dev.tsv", valid),
        "test": Split("test.tsv", test, submission=f"{name}.tsv"),
    }


_BINARY = ("0", "1")
_COLA_COLUMNS = ("source", "label", "author_label", "sentence")
_NLI = ("contradiction", "neutral", "entailment")

TASKS = {
    task.name: task
    for task in (
        GlueTask(
            name="CoLA",
            folder="CoLA",
            inputs=("sentence",),
            label="label",
            labels=_BINARY,
            metrics=("mcc", "accuracy"),
            splits={
                "train": Split("train.tsv", 8551, _COLA_COLUMNS),
                "valid": Split("dev.tsv", 1043, _COLA_COLUMNS),
                "test": Split("test.tsv", 1063, submission="CoLA.tsv"),
            },
            epochs=10,
        ),
        GlueTask(
            name="SST-2",
            folder="SST-2",
            inputs=("sentence",),
            label="label",
            labels=_BINARY,
            metrics=("accuracy",),
            splits=_splits("SST-2", 67349, 872, 1821),
            epochs=10,
        ),
        GlueTask(
            name="MRPC",
            folder="MRPC",
            inputs=("#1 String", "#2 String"),
            label="Quality",
            labels=_BINARY,
            metrics=("accuracy", "f1", "acc_f1"),
            splits=_splits("MRPC", 3668, 408, 1725),
            epochs=10,
        ),
        GlueTask(
            name="STS-B",
            folder="STS-B",
            inputs=("sentence1", "sentence2"),
            label="score",
            labels=(),
            metrics=("pearson", "spearman", "pearson_spearman"),
            splits=_splits("STS-B", 5749, 1500, 1379),
            epochs=10,
            # The paper's appendix divides by 5, the authors' code does not. Pearson and Spearman are the same
            # for both; the loss is 25 times larger without.
            label_scale=5.0,
        ),
        GlueTask(
            name="QQP",
            folder="QQP",
            inputs=("question1", "question2"),
            label="is_duplicate",
            labels=_BINARY,
            metrics=("accuracy", "f1", "acc_f1"),
            splits={
                "train": Split("train.tsv", 363846, malformed=True),
                "valid": Split("dev.tsv", 40430),
                "test": Split("test.tsv", 390965, submission="QQP.tsv"),
            },
            epochs=5,
        ),
        GlueTask(
            name="MNLI",
            folder="MNLI",
            inputs=("sentence1", "sentence2"),
            label="gold_label",
            labels=_NLI,
            metrics=("accuracy",),
            splits={
                "train": Split("train.tsv", 392702),
                "valid": Split("dev_matched.tsv", 9815),
                "valid1": Split("dev_mismatched.tsv", 9832),
                "test": Split("test_matched.tsv", 9796, submission="MNLI-m.tsv"),
                "test1": Split("test_mismatched.tsv", 9847, submission="MNLI-mm.tsv"),
            },
            epochs=5,
        ),
        GlueTask(
            name="QNLI",
            folder="QNLI",
            inputs=("question", "sentence"),
            label="label",
            labels=("entailment", "not_entailment"),
            metrics=("accuracy",),
            splits=_splits("QNLI", 104743, 5463, 5463),
            epochs=5,
        ),
        GlueTask(
            name="RTE",
            folder="RTE",
            inputs=("sentence1", "sentence2"),
            label="label",
            labels=("entailment", "not_entailment"),
            metrics=("accuracy",),
            splits=_splits("RTE", 2490, 277, 3000),
            epochs=10,
        ),
        GlueTask(
            name="WNLI",
            folder="WNLI",
            inputs=("sentence1", "sentence2"),
            label="label",
            labels=_BINARY,
            metrics=("accuracy",),
            splits=_splits("WNLI", 635, 71, 146),
            epochs=10,
        ),
        GlueTask(
            name="AX",
            folder="diagnostic",
            inputs=("sentence1", "sentence2"),
            label="",
            labels=_NLI,
            metrics=(),
            splits={"test": Split("diagnostic.tsv", 1104, submission="AX.tsv")},
            epochs=0,
            model="MNLI",
        ),
    )
}


WORD_ORDER = GlueTask(  # the quickstart's task, not of GLUE: word_order.py makes it, in the format of CoLA
    name="WordOrder",
    folder="WordOrder",
    inputs=("sentence",),
    label="label",
    labels=_BINARY,
    metrics=("mcc", "accuracy"),
    splits={
        "train": Split("train.tsv", None, _COLA_COLUMNS),
        "valid": Split("dev.tsv", None, _COLA_COLUMNS),
    },
    epochs=3,
)
KNOWN = {**TASKS, WORD_ORDER.name: WORD_ORDER}  # all that can be prepared, by name


def find_task(name: str, *folders: Path) -> GlueTask:
    """A task by its name: of the table, of a TOML file, or of the first folder whose task.json is of it.

    Raises:
        OSError: the TOML file cannot be read.
        ValueError: there is no such task, or its file is damaged.
    """
    if name.endswith(".toml"):
        task = read_task(Path(name))
        if task.name in KNOWN:
            raise ValueError(f"{name}: {task.name} is the name of a task of this project; choose another")
        return task
    if name in KNOWN:
        return KNOWN[name]
    for folder in folders:
        if (folder / DESCRIPTION_FILE).is_file():
            prepared = PreparedTask.load(folder)
            if prepared.task.name == name:
                return prepared.task
    raise ValueError(f"no task {name!r:.60}; there are {', '.join(TASKS)}, and your own in TASK.toml files")


@dataclass(frozen=True)
class PreparedTask:
    """What `task.json` in a prepared folder says."""

    task: GlueTask
    rows: Mapping[str, int]  # found, by split
    vocabulary: str  # fingerprint of the vocabulary that the ids belong to
    digest: str = ""  # SHA-256 (hex) of all texts and labels

    def save(self, folder: Path) -> None:
        """Writes `folder/task.json`."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (folder / DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, name: str | None = None) -> PreparedTask:
        """Reads `folder/task.json`, which may come from anywhere: only what
        the table says too, or what a TOML file could say, is taken.

        Args:
            name: of the task that it must be.

        Raises:
            FileNotFoundError: the folder does not exist or holds no such file.
            ValueError: the file was not written by `save`, is of another task, or of another table than ours.
        """
        path = folder / DESCRIPTION_FILE
        if not path.is_file():
            raise FileNotFoundError(f"no {path}; scripts/prepare_glue.sh makes it")
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            row, rows, *texts = (stored[key] for key in ("task", "rows", "vocabulary", "digest"))
            found = row["name"]
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged ({error!r:.100}); prepare the task again") from None
        if name not in (None, found):
            raise ValueError(f"{path} is of {found!r:.40}, not of {name}; prepare {name} there")
        task = _sound_task(path, row)
        sound = isinstance(rows, dict) and rows.keys() <= task.splits.keys()
        sound = sound and all(isinstance(text, str) for text in texts)
        if not sound or not all(type(n) is int and 0 < n < 10**12 for n in rows.values()):
            raise ValueError(f"{path} is damaged (its rows or fingerprints); prepare the task again")
        return cls(task, rows, *texts)


def _sound_task(path: Path, row: Mapping[str, Any]) -> GlueTask:
    """The task that a row of a file is in every field: one of the table, or a sound one of somebody's own."""
    task = KNOWN.get(row["name"]) if isinstance(row["name"], str) else None
    if task is None:
        task = _own_task(path, row)
    ours = json.loads(json.dumps(asdict(task)))  # with lists for tuples
    if row != ours:
        differ = ", ".join(sorted(key for key in ours if row.get(key) != ours[key])) or "fields"
        raise ValueError(f"{path} has other {differ} than {task.name} here; prepare the task again")
    return task


def _own_task(path: Path, row: Mapping[str, Any]) -> GlueTask:
    """The task that a TOML file with the fields of this row would make."""
    try:
        files = {split: known["file"] for split, known in row["splits"].items()}
        fields = {name: row[name] for name in FIELDS if name in row}
        del fields["label_scale" if row["labels"] else "labels"]
        return own_task({**fields, **files})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is of no task of this project, and no sound one of your own ({error!s:.200}); there are "
            f"{', '.join(TASKS)}"
        ) from None


if __name__ == "__main__":
    from .glue_cli import main

    main()
