"""Prepares GLUE for the fairseq task: ``python -m tupe_fairseq.glue_data -g GLUE_DIR -c CORPUS -o GLUE_BIN``.

A task becomes a folder, complete or absent:

    GLUE_BIN/TASK/task.json                 what the task is (glue.PreparedTask)
    GLUE_BIN/TASK/dict.txt, spm.model       the corpus's vocabulary
    GLUE_BIN/TASK/input0/SPLIT.bin, .idx    a row is the ids of a sentence and </s>; input1 for pairs
    GLUE_BIN/TASK/label/SPLIT.label         a line is the name of a label, or a number
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .glue import DESCRIPTION_FILE, LONGEST, TASKS, PreparedTask, find_task
from .glue_rows import find_file, read_rows
from .glue_task import GlueTask, labelled
from .token_file import TokenFile
from .vocabulary import DICTIONARY_FILE, EOS, MAX_UNKNOWN, MODEL_FILE, UNK, Vocabulary, check_unknown


def prepare(
    task: GlueTask,
    glue_dir: Path,
    corpus: Path,
    out: Path,
    on_bad_row: Literal["error", "skip"] = "error",
    splits: Collection[str] | None = None,
    max_unknown: float = MAX_UNKNOWN,
) -> None:
    """Makes the folder ``out/task.name`` of the splits that there are, and prints what is in it.

    Args:
        on_bad_row: what to do with a line that is not what the table says. One without which a prediction
            would be missing, of test rows, is an error always; those that are known to be malformed, in QQP's
            training rows, are skipped always.
        splits: those to prepare, if not all.
        max_unknown: the largest share of unknown pieces that a split may have.

    Raises:
        FileNotFoundError: no file of the task, or none of the vocabulary.
        ValueError: a line of a file is not what the table says, or too many pieces are unknown.
    """
    vocabulary = Vocabulary(corpus)
    print(f"{task.name}: {', '.join(task.labels) or f'a number from 0 to {task.label_scale:g}'}")
    with _complete_folder(out / task.name) as folder:
        for name in (MODEL_FILE, DICTIONARY_FILE):
            shutil.copyfile(corpus / name, folder / name)
        rows, digest = {}, hashlib.sha256()
        for split, known in task.splits.items():
            if splits is not None and split not in splits:
                continue
            path = find_file(glue_dir, task, split)
            if path is None:
                print(f"  warning: no {glue_dir / task.folder / known.file}, so there are no {split} rows")
                continue
            skip = labelled(split) and (on_bad_row == "skip" or known.malformed)
            rows[split], unknown = _prepare_split(task, split, path, vocabulary, folder, skip, digest)
            try:
                lack = check_unknown(unknown, max_unknown)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            if lack:
                print(f"  warning: {lack}")
            if known.rows is not None and rows[split] != known.rows:
                print(f"  warning: {path.name} has {rows[split]:,} rows where GLUE's has {known.rows:,}")
        if not rows:
            raise FileNotFoundError(f"{glue_dir / task.folder} has no file of {task.name}")
        PreparedTask(task, rows, vocabulary.fingerprint, digest.hexdigest()).save(folder)


def _prepare_split(
    task: GlueTask, split: str, path: Path, vocabulary: Vocabulary, folder: Path, skip: bool, digest: Any
) -> tuple[int, float]:
    """Writes inputs and labels of a split, prints a line about them; returns the number of rows, and the
    share of unknown pieces.

    The rows are added to the digest.
    """
    lengths, unknown = [], 0
    bad_rows: list[str] = []
    with ExitStack() as stack:
        inputs = [
            stack.enter_context(TokenFile(_made(folder / f"input{i}" / split), len(vocabulary)))
            for i in range(len(task.inputs))
        ]
        labels = None
        if labelled(split):
            label_path = _made(folder / "label" / f"{split}.label")
            labels = stack.enter_context(label_path.open("w", encoding="utf-8", newline="\n"))
        for row in read_rows(path, task, split, bad_rows.append if skip else None):
            digest.update(repr((split, *row)).encode())
            sentences = [[*vocabulary.encode(text), EOS] for text in row.texts]
            for file, ids in zip(inputs, sentences):
                file.add(ids)
            if labels:
                labels.write(f"{row.label}\n")
            lengths.append(sum(map(len, sentences)) + len(sentences))  # with <s>, and </s> between the two
            unknown += sum(ids.count(UNK) for ids in sentences)
        if not lengths:
            raise ValueError(f"{path} has no rows" + (f": {bad_rows[0]}" if bad_rows else ""))
    share = _report(split, np.array(lengths), unknown, len(task.inputs))
    if bad_rows:
        print(f"  warning: {len(bad_rows):,} bad rows of {split} skipped, the first: {bad_rows[0]}")
    return len(lengths), share


def _report(split: str, lengths: np.ndarray, unknown: int, sentences: int) -> float:
    """Prints a line about a split, whose rows have these lengths (N,) in tokens, special ones included;
    returns the share of unknown pieces."""
    pieces = int(lengths.sum()) - 2 * sentences * len(lengths)  # <s> A </s>, or <s> A </s> </s> B </s>
    share = unknown / max(pieces, 1)
    print(
        f"  {split}: {len(lengths):,} rows of {lengths.mean():.1f} tokens, the longest of {lengths.max():,}, "
        f"{(lengths > LONGEST).sum():,} over {LONGEST}; {share:.3%} of the pieces unknown"
    )
    return share


def _made(path: Path) -> Path:
    """The path of a file, in a folder that exists by now."""
    path.parent.mkdir(exist_ok=True)
    return path


@contextmanager
def _complete_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into; it takes the place of ``folder`` if all goes well, and vanishes otherwise.

    Raises:
        ValueError: what stands there is no prepared task, but perhaps the raw data.
    """
    if folder.exists() and not (folder / DESCRIPTION_FILE).is_file():
        raise ValueError(
            f"{folder} exists and was not made by prepare_glue.sh; name another GLUE_BIN with -o"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
        fresh = Path(scratch, "new")
        fresh.mkdir()
        yield fresh
        old = Path(scratch, "old")
        if folder.exists():
            folder.rename(old)
        try:
            fresh.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)
            raise


def choose(names: Sequence[str], glue_dir: Path | None) -> list[tuple[GlueTask, Path]]:
    """The named tasks with the folder that their own lies in, or all of the table that ``glue_dir`` has.

    Args:
        names: of the table, or TOML files of one's own, whose data lies beside them.
        glue_dir: may be missing where all are of one's own.

    Raises:
        FileNotFoundError: no such folder, or no folder of a named task.
        ValueError: a task that the table does not have, or a TOML file that is no task.
    """
    chosen = []
    for name in names:
        task, own = find_task(name), name.endswith(".toml")
        folder = Path(name).parent if own else _given(glue_dir)
        if not (folder / task.folder).is_dir():
            raise FileNotFoundError(f"no folder {folder / task.folder} for {task.name}")
        chosen.append((task, folder))
    return chosen or [(task, _given(glue_dir)) for task in _found(_given(glue_dir))]


def _given(glue_dir: Path | None) -> Path:
    if glue_dir is None:
        raise ValueError("-g GLUE_DIR is missing; only tasks of your own, TASK.toml, need none")
    if not glue_dir.is_dir():
        raise FileNotFoundError(f"no folder {glue_dir}")
    return glue_dir


def _found(glue_dir: Path) -> list[GlueTask]:
    """The tasks of the table that a folder has; what else it has is said."""
    found = [task for task in TASKS.values() if (glue_dir / task.folder).is_dir()]
    if not found:
        raise FileNotFoundError(f"{glue_dir} has no folder of a GLUE task: {', '.join(TASKS)}")
    known = {task.folder for task in TASKS.values()}
    others = sorted(p.name for p in glue_dir.iterdir() if p.is_dir() and p.name not in known)
    if others:
        print(f"left out, as they are no tasks of this project: {', '.join(others)}")
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tupe_fairseq.glue_data", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("-g", "--glue", type=Path, help="GLUE_DIR, a folder for each task")
    parser.add_argument("-c", "--corpus", type=Path, required=True, help="CORPUS, whose vocabulary to use")
    parser.add_argument("-o", "--out", type=Path, required=True, help="GLUE_BIN, where the folders go")
    parser.add_argument(
        "--on-bad-row",
        choices=["error", "skip"],
        default="error",
        help="stop at a line of training or dev rows that has a wrong number of columns or an unknown label "
        "(default), or leave it out and count it",
    )
    parser.add_argument(
        "--max-unknown",
        type=float,
        default=MAX_UNKNOWN,
        help="stop at a split with a larger share of unknown pieces (default: %(default)s; 1 lets all pass)",
    )
    parser.add_argument(
        "tasks",
        nargs="*",
        metavar="TASK",
        help="tasks to prepare (default: all found): CoLA, RTE, ..., or TASK.toml for one of your own, with "
        "its data beside it",
    )
    args = parser.parse_args()
    try:
        for task, folder in choose(args.tasks, args.glue):
            prepare(task, folder, args.corpus, args.out, args.on_bad_row, max_unknown=args.max_unknown)
    except (OSError, ValueError) as error:
        sys.exit(f"prepare_glue: {error}")


if __name__ == "__main__":
    main()
