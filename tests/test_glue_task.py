"""Tasks of one's own: a TOML file, as the README shows it, and what becomes of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import tiny_glue
import tiny_pretrained

from tupe_fairseq import glue_cli
from tupe_fairseq.export_hf import export
from tupe_fairseq.glue import PreparedTask, find_task
from tupe_fairseq.glue_report import report
from tupe_fairseq.glue_results import Result
from tupe_fairseq.glue_task import OF_LABELS, OF_NUMBERS, GlueTask, Split, own_task, read_task
from tupe_fairseq.sentence_criterion import METRICS, score

QUEUES = ["billing", "bug", "praise"]
ROW = {
    "name": "Tickets",
    "inputs": ["subject", "body"],
    "label": "queue",
    "labels": QUEUES,
    "metrics": ["macro_f1", "accuracy"],
    "epochs": 10,
    "train": "train.tsv",
    "valid": "dev.tsv",
    "test": "test.tsv",
}
TICKETS = GlueTask(
    name="Tickets",
    folder=".",
    inputs=("subject", "body"),
    label="queue",
    labels=("billing", "bug", "praise"),
    metrics=("macro_f1", "accuracy"),
    splits={
        "train": Split("train.tsv", None),
        "valid": Split("dev.tsv", None),
        "test": Split("test.tsv", None),
    },
    epochs=10,
)


@pytest.fixture(scope="module")
def tickets(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's example, with data."""
    folder = tmp_path_factory.mktemp("tickets")
    example = re.search(r"```toml\n(.+?)```", (root / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example
    (folder / "tickets.toml").write_text(example[1], encoding="utf-8")
    header = ["id", "queue", "subject", "body"]
    for name, count in (("train", 24), ("dev", 9), ("test", 5)):
        rows = [
            [str(i), QUEUES[i % 3], tiny_glue.sentence(i, 3), tiny_glue.sentence(i + 1, 4)]
            for i in range(count)
        ]
        tiny_glue.write_tsv(folder / f"{name}.tsv", [header, *rows])
    return folder


def test_the_readmes_example(tickets: Path) -> None:
    assert read_task(tickets / "tickets.toml") == TICKETS


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"name": "../up"}, "name = '../up' is not a name of letters, digits"),
        ({"name": "a\n--user-dir"}, "is not a name of letters"),
        ({"inputs": []}, "inputs = [] is not a list of one or two names of columns"),
        ({"inputs": ["a", "b", "c"]}, "is not a list of one or two"),
        ({"inputs": "subject"}, "is not a list of one or two"),
        ({"label": "a\tb"}, "is not the name of a column"),
        ({"labels": ["one"]}, "is not a list of two or more different names in quotes"),
        ({"labels": [0, 1]}, "labels = [0, 1] is not a list of two or more different names in quotes"),
        ({"labels": ["a", "a"]}, "is not a list of two or more different names"),
        ({"label_scale": 5.0}, "give either labels, or label_scale"),
        ({"labels": None, "label_scale": float("nan")}, "is not the largest number"),
        ({"labels": None, "label_scale": True}, "is not the largest number"),
        ({"metrics": ["f1"]}, "of this task there are accuracy, macro_f1, mcc"),
        ({"metrics": ["pearson"]}, "of this task there are accuracy, macro_f1, mcc"),
        ({"metrics": []}, "metrics = [] is not"),
        ({"epochs": 0}, "epochs = 0 is not a whole number from 1 to 1000"),
        ({"epochs": "10"}, "epochs = '10' is not a whole number"),
        ({"train": "/etc/passwd"}, "train = '/etc/passwd' is no name of a file beside this one"),
        ({"valid": ".."}, "valid = '..' is no name of a file"),
        ({"valid": None}, "name the files of train and valid"),
        ({"epoch": 5}, "unknown field 'epoch'; there are name, inputs"),
        ({"label": None}, "the field label is missing; it must be the name of a column"),
    ],
)
def test_faults_are_named(change: dict, sentence: str) -> None:
    row = {key: value for key, value in {**ROW, **change}.items() if value is not None}
    with pytest.raises(ValueError, match=re.escape(sentence)):
        own_task(row)


def test_kinds_of_metrics() -> None:
    assert sorted(OF_LABELS + OF_NUMBERS) == sorted(METRICS)
    two = own_task({**ROW, "labels": ["no", "yes"], "metrics": ["f1"]})
    assert two.metrics == ("f1",)


def test_a_number_is_a_label_too() -> None:
    row = {**ROW, "label_scale": 7, "metrics": ["pearson"]}
    del row["labels"]
    assert (own_task(row).regression, own_task(row).label_scale) == (True, 7.0)


def test_macro_f1_by_hand() -> None:
    """Of label 0: precision 1/2, recall 1, F1 2/3; of 1: recall 0; of 2: 1. The mean is 5/9."""
    targets, predictions = np.array([0, 1, 2]), np.array([0, 0, 2])
    assert score(["macro_f1"], predictions, targets) == {"macro_f1": pytest.approx(5 / 9)}


def test_names_are_found(tickets: Path, tmp_path: Path) -> None:
    assert find_task(str(tickets / "tickets.toml")) == TICKETS
    PreparedTask(TICKETS, {"train": 3}, "v").save(tmp_path)
    assert find_task("Tickets", tmp_path / "none", tmp_path) == TICKETS
    with pytest.raises(ValueError, match=r"no task 'Other'; there are CoLA, .* and your own in TASK\.toml"):
        find_task("Other", tmp_path)
    taken = tmp_path / "rte.toml"
    taken.write_text((tickets / "tickets.toml").read_text().replace("Tickets", "RTE"))
    with pytest.raises(ValueError, match="RTE is the name of a task of this project; choose another"):
        find_task(str(taken))
    taken.write_text("name = ")
    with pytest.raises(ValueError, match=r"rte\.toml: Invalid value"):
        find_task(str(taken))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"metrics": ["accuracy\n--user-dir\n/tmp/evil"]}, "is not a list of metrics"),
        ({"splits": {"test": {"file": "../up.tsv"}}}, "no name of a file"),
        (
            {"splits": {**asdict(TICKETS)["splits"], "test": {"file": "a", "submission": "/up"}}},
            "other splits",
        ),
        ({"folder": "../.."}, "other folder"),
        ({"model": "RTE"}, "other model"),
        ({"name": "../up"}, "no sound one of your own"),
    ],
)
def test_a_description_of_ones_own_is_not_believed(tmp_path: Path, change: dict, message: str) -> None:
    PreparedTask(TICKETS, {"train": 5}, "f").save(tmp_path)
    assert PreparedTask.load(tmp_path, "Tickets").task == TICKETS
    stored = json.loads((tmp_path / "task.json").read_text())
    stored["task"] |= change
    (tmp_path / "task.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=message):
        PreparedTask.load(tmp_path)


@pytest.mark.slow
def test_from_the_file_to_predictions(root: Path, tickets: Path, tmp_path: Path) -> None:
    """Prepared, swept, reported, predicted from prepared and from raw rows, and exported."""
    model = tmp_path / "model"
    tiny_pretrained.make(model)
    runs, out = tmp_path / "runs", tmp_path / "out"
    script(root, "prepare_glue.sh", "-c", model, "-o", tmp_path / "bin", tickets / "tickets.toml")
    flags = ["--cpu", "--batch-size", "4", "--max-epoch", "1", "--tokens-per-sample", "40"]
    words = [tmp_path / "bin", model / "checkpoint_best.pt", runs, "Tickets", "--", *flags]
    script(root, "sweep_glue.sh", *words, RATES="1e-3", SEEDS="1")
    run = runs / "Tickets" / "lr-1e-3_seed-1"
    result = Result.load(run)
    assert result and result.task == TICKETS and set(TICKETS.metrics) <= result.metrics["valid"].keys()
    assert "| Tickets | macro_f1 | 1e-3 |" in report(runs, None)
    for source in (tmp_path / "bin", tickets):
        glue_cli.main(["predict", str(run), str(source), "Tickets", "-o", str(out / source.name), "--cpu"])
    guesses = [(out / name / "Tickets.test.tsv").read_text() for name in ("bin", tickets.name)]
    rows = guesses[0].splitlines()[1:]
    assert guesses[0] == guesses[1] and len(rows) == 5
    assert {row.split("\t")[1] for row in rows} <= set(QUEUES)
    export(run, tmp_path / "hf")
    names = json.loads((tmp_path / "hf" / "config.json").read_text())["id2label"]
    assert names == {"0": "billing", "1": "bug", "2": "praise"}


def script(root: Path, name: str, *words: object, **environment: str) -> None:
    """Runs one of the scripts."""
    command = ["bash", str(root / "scripts" / name), *map(str, words)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
