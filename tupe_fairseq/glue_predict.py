"""Predictions of a fine-tuned model: ``python -m tupe_fairseq.glue predict CHECKPOINT GLUE_BIN TASK -o OUT``.

    OUT/RTE.tsv        test rows, as GLUE's leaderboard takes them: index, prediction
    OUT/RTE.valid.tsv  rows that have labels, with --split valid: index, prediction, label

A header, then a line for every row, always, in the order of GLUE's file.

Shapes: N rows of a split, C outputs of the sentence head (1 for regression).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from . import checkpoints
from .glue import PreparedTask, find_task
from .glue_flags import check_data
from .glue_reader import (
    Finetuned,
    choose_splits,
    compute_outputs,
    load_finetuned,
    prepared_folder,
)
from .glue_submission import HEADER
from .glue_task import GlueTask, labelled
from .save_folder import find_checkpoint
from .sentence_criterion import CORRELATIONS, score, why_undefined
from .sentence_rows import label_file, load_rows, load_targets
from .whole_file import whole_file


def predictions_of(task: GlueTask, outputs: np.ndarray) -> np.ndarray:
    """Label ids (N,), or numbers (N,) of the task's scale, from outputs (N, C)."""
    return outputs[:, 0] * task.label_scale if task.regression else outputs.argmax(axis=1)


def submission_lines(task: GlueTask, predictions: np.ndarray) -> list[str]:
    """The leaderboard's file: names of labels, or numbers within the scale, of three decimals."""
    if task.regression:
        inside = np.clip(predictions, 0, task.label_scale) + 0.0  # -0.0 becomes 0.0
        names = [f"{value:.3f}" for value in inside]
    else:
        names = [task.labels[i] for i in predictions]
    return [HEADER, *(f"{i}\t{name}" for i, name in enumerate(names))]


def labelled_lines(task: GlueTask, predictions: np.ndarray, labels: Sequence[str]) -> list[str]:
    """Predictions beside the labels; numbers as the model gives them, six decimals and not clipped."""
    names = [f"{value:.6f}" if task.regression else task.labels[value] for value in predictions]
    return [f"{HEADER}\tlabel", *(f"{i}\t{a}\t{b}" for i, (a, b) in enumerate(zip(names, labels)))]


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Writes a file, complete or not at all."""
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def predict_split(
    reader: Finetuned, folder: Path, prepared: PreparedTask, split: str, out: Path, batch_size: int
) -> None:
    """Writes the predictions of a split and prints what was done, with the metrics where there are labels.

    Raises:
        OSError, ValueError: as the functions above.
    """
    task = prepared.task
    symbols = reader.model.encoder.cfg.vocab_size
    rows = load_rows(folder, prepared, split, reader.longest, symbols)
    predictions = predictions_of(task, compute_outputs(reader, rows, batch_size))
    said = f"{task.name} {split}: {len(rows):,} rows, {rows.cut:,} cut to {reader.longest} tokens"
    if labelled(split):
        path, targets = out / f"{task.name}.{split}.tsv", load_targets(folder, prepared, split)
        labels = label_file(folder, split).read_text(encoding="utf-8").splitlines()
        write_lines(path, labelled_lines(task, predictions, labels))
        said += f"; {_scores(task, predictions, targets * task.label_scale)}"
    else:
        known = task.splits[split]
        path = out / (known.submission or f"{task.name}.{split}.tsv")
        write_lines(path, submission_lines(task, predictions))
        if task.regression:
            outside = int(((predictions < 0) | (predictions > task.label_scale)).sum())
            said += f", {outside:,} predictions clipped to 0..{task.label_scale:g}"
        if known.rows is not None and known.rows != len(rows):
            said += f"; warning: GLUE's has {known.rows:,} rows, and the leaderboard will refuse this"
    print(f"{said} -> {path}")


def _scores(task: GlueTask, predictions: np.ndarray, targets: np.ndarray) -> str:
    """The metrics (N rows each) as text; one that is undefined counts as 0, and the reason is named."""
    reason = why_undefined(predictions, targets)
    return ", ".join(
        f"{name} {value:.4f}" + (f" (undefined, as {reason})" if reason and name in CORRELATIONS else "")
        for name, value in score(task.metrics, predictions, targets).items()
    )


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``glue predict``."""
    parser.add_argument(
        "checkpoint", type=Path, metavar="CHECKPOINT", help="of finetune_glue.sh, or a folder of it: its best"
    )
    parser.add_argument(
        "glue",
        type=Path,
        metavar="GLUE_BIN",
        help="made by prepare_glue.sh; or GLUE_DIR with the raw files, read with the checkpoint's spm.model",
    )
    parser.add_argument(
        "task", metavar="TASK", help="CoLA, RTE, ..., or the name of your own; AX is read by a model of MNLI"
    )
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for the files of predictions")
    parser.add_argument("--batch-size", type=int, default=32, help="rows of a batch (default: 32)")
    parser.add_argument("--cpu", action="store_true", help="on the CPU, even where there is a GPU")
    parser.add_argument(
        "--split",
        action="append",
        default=[],
        help="which rows, may be repeated: valid, for example, writes TASK.valid.tsv with the labels and "
        "prints the metrics (default: all test rows)",
    )


def run_predict(args: argparse.Namespace) -> None:
    """Writes a file for each split.

    Raises:
        OSError, ValueError: something is missing or does not fit; the message is one sentence.
    """
    if args.batch_size < 1:
        raise ValueError(f"--batch-size {args.batch_size} is no number of rows; give 1 or more")
    path = find_checkpoint(args.checkpoint)
    task = find_task(args.task, args.glue / args.task, path.parent)
    state = checkpoints.load(path)
    reader = load_finetuned(state, path, task)
    with prepared_folder(args.glue, task, args.split, path.parent) as folder:
        prepared = PreparedTask.load(folder, task.name)
        splits = choose_splits(prepared, args.split, args.glue)
        check_data(state, path, folder, prepared)
        reader.model.to("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
        for split in splits:
            predict_split(reader, folder, prepared, split, args.out, args.batch_size)
