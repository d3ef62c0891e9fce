"""The rows of GLUE's files, as they stand there. Standard library only."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .glue_task import GlueTask, labelled


class Row(NamedTuple):
    """A line of a file: the columns that matter, as they stand there."""

    texts: tuple[str, ...]
    label: str | None  # None in test splits


def find_file(glue_dir: Path, task: GlueTask, split: str) -> Path | None:
    """The file of a split, if there is one; for training rows a sample will do (train*sample*.tsv)."""
    folder = glue_dir / task.folder
    path = folder / task.splits[split].file
    if path.is_file():
        return path
    samples = sorted(folder.glob("train*sample*.tsv")) if split == "train" else []
    return samples[0] if len(samples) == 1 else None


def read_rows(
    path: Path, task: GlueTask, split: str, bad_row: Callable[[str], None] | None = None
) -> Iterator[Row]:
    """The rows of a split's file, in order. Quotes have no meaning in these files: tabs alone separate.

    Args:
        bad_row: takes a sentence about each line that is not what the table says, and leaves it out.

    Raises:
        ValueError: a header or, without `bad_row`, a line is not what the table says; the sentence names file
            and line.
    """
    lines = _read_lines(path)
    columns = task.splits[split].columns or _header(path, lines)
    wanted = task.inputs + ((task.label,) if labelled(split) else ())
    for name in wanted:
        if columns.count(name) != 1:
            if name in columns:
                raise ValueError(f"{path}, line 1: the header has the column {name!r} twice")
            there = ", ".join(map(repr, columns))
            raise ValueError(f"{path}, line 1: the header has no column {name!r} but {there:.200}")
    places = [columns.index(name) for name in wanted]
    for number, line in lines:
        try:
            fields = _split_line(_decode(line), len(columns))
            texts = [fields[place] for place in places]
            label = check_label(texts.pop(), task) if labelled(split) else None
        except ValueError as error:
            sentence = f"{path}, line {number}: {error}"
            if bad_row is None:
                raise ValueError(sentence) from None
            bad_row(sentence)
        else:
            yield Row(tuple(texts), label)


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered lines without their ends (LF or CRLF); a byte-order mark is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield number, line.removesuffix(b"\n").removesuffix(b"\r")


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error})") from None


def _header(path: Path, lines: Iterator[tuple[int, bytes]]) -> tuple[str, ...]:
    for _, line in lines:
        return tuple(line.decode("utf-8", errors="replace").split("\t"))
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
            raise ValueError(f"label {label!r:.60} is none of {', '.join(task.labels)}")
        return label
    plain = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,30})?(e-?[0-9]{1,2})?", label)
    if not plain or float(label) > task.label_scale:
        raise ValueError(f"label {label!r:.60} is no number from 0 to {task.label_scale:g}")
    return label
