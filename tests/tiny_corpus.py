"""Texts and corpora small enough for every test to prepare them for real."""

from __future__ import annotations

import json
import random
from itertools import groupby
from pathlib import Path

from fairseq.data.indexed_dataset import MMapIndexedDataset

from tupe_fairseq import corpus
from tupe_fairseq.vocabulary import EOS, Vocabulary

WORDS = ["time", "year", "people", "day", "thing", "woman", "life", "child", "world", "school", "family"]


def sentence(number: int) -> str:
    """A line of its own that cleaning keeps as it is, with all letters of the alphabet; about 110 bytes."""
    words = random.Random(number).choices(WORDS, k=15)
    return " ".join(["the quick brown fox jumps over the lazy dog", *words])


def documents(*lengths: int) -> list[list[str]]:
    """Documents of so many lines, no two lines alike."""
    numbers = iter(range(sum(lengths)))
    return [[sentence(next(numbers)) for _ in range(length)] for length in lengths]


TWENTY = documents(*[5] * 20)


def written(path: Path, text: list[list[str]]) -> Path:
    """The documents as a text file, a blank line between two; returns its path."""
    path.write_text("\n\n".join("\n".join(lines) for lines in text) + "\n", encoding="utf-8")
    return path


def run(tmp_path: Path, text: Path, *flags: str) -> int:
    """The command, to tmp_path/corpus; returns its exit status."""
    return corpus.main(["-o", str(tmp_path / "corpus"), "-v", "60", "--workers", "1", *flags, str(text)])


def rows(prefix: Path) -> list[list[int]]:
    """Rows of a token file as fairseq reads them."""
    dataset = MMapIndexedDataset(str(prefix))
    return [dataset[i].tolist() for i in range(len(dataset))]


def read_documents(folder: Path, split: str) -> list[list[str]]:
    """Documents of a corpus; a row of `</s>` alone parts two."""
    decode = Vocabulary(folder).decode
    groups = groupby(rows(folder / "bin" / split), lambda row: row == [EOS])
    return [[decode(row[:-1]) for row in group] for between, group in groups if not between]


def contents(folder: Path) -> dict[str, bytes]:
    """Files by name, without the summary, which tells the time."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "summary.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def summary_of(folder: Path) -> dict:
    """What the summary says in each run alike."""
    summary = json.loads((folder / "summary.json").read_text())
    times = ("files", "seconds", "mb_per_second", "stages")
    return {key: value for key, value in summary.items() if key not in times}
