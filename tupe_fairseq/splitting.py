"""Documents for training and for validation: `train.txt` and `valid.txt` in a folder.

A document goes whole to one side. A hash of its number draws those that validate, about one in `valid_every`;
where it draws none, a document of fitting length moves, and of a lone document its last lines.

A document is a run of lines that are not empty; an empty line parts two.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

SPLITS = ("train", "valid")


def draw(number: int, seed: int, valid_every: int) -> bool:
    """Whether document `number` validates: a hash draws one in `valid_every`, never the first (0)."""
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return number > 0 and int.from_bytes(digest, "big") % valid_every == 0


def write_documents(lines: Iterable[str], folder: Path, validates: Callable[[int], bool]) -> list[int]:
    """Writes each document to its side; returns how many train and how many validate.

    lines: without their ends; they stream through.
    validates: tells from a document's number, counted from 0, whether it validates.
    """
    counts = [0, 0]
    with ExitStack() as stack:
        files = [
            stack.enter_context((folder / f"{split}.txt").open("w", encoding="utf-8", newline="\n"))
            for split in SPLITS
        ]
        for between, document in groupby(lines, "".__eq__):
            if between:
                continue
            side = int(validates(sum(counts)))
            if counts[side]:
                files[side].write("\n")
            files[side].writelines(f"{line}\n" for line in document)
            counts[side] += 1
    return counts


def move_document(folder: Path, valid_every: int) -> list[int]:
    """Where no document was drawn, moves one from train.txt to valid.txt: the one whose number of lines is
    nearest to one in `valid_every`. Returns how many train and how many validate."""
    whole = (folder / "train.txt").rename(folder / "whole.txt")
    with whole.open(encoding="utf-8", newline="\n") as text:
        groups = groupby(text, "\n".__eq__)
        lengths = [sum(1 for _ in document) for between, document in groups if not between]
    fitting = sum(lengths) / valid_every
    chosen = min(range(len(lengths)), key=lambda number: abs(lengths[number] - fitting))
    with whole.open(encoding="utf-8", newline="\n") as text:
        counts = write_documents((line.rstrip("\n") for line in text), folder, chosen.__eq__)
    whole.unlink()
    return counts


def move_lines(folder: Path, lines: int, valid_every: int) -> int:
    """Where there is but one document, moves its last lines, one in `valid_every` and at least one, from
    train.txt to valid.txt. Returns their number. Raises ValueError for one line."""
    if lines < 2:
        raise ValueError(
            "one line is left after cleaning, but a corpus trains on some and validates on others; "
            "give the text a line for each paragraph or sentence"
        )
    moved = max(1, lines // valid_every)
    with (folder / "train.txt").open("r+b") as train, (folder / "valid.txt").open("wb") as valid:
        for _ in range(lines - moved):
            train.readline()
        end = train.tell()
        shutil.copyfileobj(train, valid)
        train.truncate(end)
    return moved
