"""A corpus and GLUE folders small enough for every test to prepare them for real."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

from tupe_fairseq import vocabulary
from tupe_fairseq.glue import TASKS
from tupe_fairseq.glue_data import prepare

WORDS = topics["assert"].split() + topics["import"].split()
RTE_LABELS = ["not_entailment", "entailment", "entailment"]  # the second label id comes first in the files


def make_corpus(folder: Path) -> Path:
    """A vocabulary of 300 pieces, learned from Python's own documentation."""
    folder.mkdir(parents=True)
    lines = [line for line in topics["import"].split("\n") + topics["assert"].split("\n") if line.strip()]
    vocabulary.train(lines, 300, folder)
    return folder


def sentence(number: int, words: int) -> str:
    """Words of that documentation, from another place for every number."""
    start = 7 * number % (len(WORDS) - words)
    return " ".join(WORDS[start : start + words])


def rte_rows(count: int, words: int = 5) -> list[list[str]]:
    """Lines of RTE as columns, the header first."""
    rows = [["index", "sentence1", "sentence2", "label"]]
    for i in range(count):
        rows.append([str(i), sentence(i, words), sentence(i + 3, 1 + i % words), RTE_LABELS[i % 3]])
    return rows


def stsb_rows(scores: Sequence[str]) -> list[list[str]]:
    """Lines of STS-B as columns, the header first."""
    rows = [["index", *"abcdef", "sentence1", "sentence2", "score"]]
    for i, score in enumerate(scores):
        rows.append([str(i), *"abcdef", sentence(i, 4), sentence(i + 1, 3), score])
    return rows


def write_tsv(path: Path, rows: list[list[str]], end: str = "\n", drop_last: int = 0) -> None:
    """Writes a file of GLUE, without the last `drop_last` columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(row[: len(row) - drop_last]) + end for row in rows]
    path.write_bytes("".join(lines).encode())


def write_task(folder: Path, train: list[list[str]], valid: list[list[str]], test: list[list[str]]) -> None:
    """The three files of a task whose label is the last column."""
    write_tsv(folder / "train.tsv", train)
    write_tsv(folder / "dev.tsv", valid)
    write_tsv(folder / "test.tsv", test, drop_last=1)


def make_rte(folder: Path, corpus: Path, train: int = 40, valid: int = 13, words: int = 5) -> Path:
    """A prepared folder GLUE_BIN/RTE; returns it."""
    write_task(folder / "glue" / "RTE", rte_rows(train, words), rte_rows(valid, words), rte_rows(3, words))
    prepare(TASKS["RTE"], folder / "glue", corpus, folder / "bin")
    return folder / "bin" / "RTE"


def make_mnli(folder: Path, corpus: Path, matched: int, mismatched: int) -> Path:
    """A prepared folder GLUE_BIN/MNLI with two dev sets; returns it."""
    labels = TASKS["MNLI"].labels
    for name, count in (("train", 40), ("dev_matched", matched), ("dev_mismatched", mismatched)):
        rows = [["sentence1", "sentence2", "gold_label"]]
        rows += [[sentence(i, 4), sentence(i + 1, 3), labels[i % 3]] for i in range(count)]
        write_tsv(folder / "glue" / "MNLI" / f"{name}.tsv", rows)
    prepare(TASKS["MNLI"], folder / "glue", corpus, folder / "bin")
    return folder / "bin" / "MNLI"


def make_stsb(folder: Path, corpus: Path, scores: Sequence[str]) -> Path:
    """A prepared folder GLUE_BIN/STS-B; returns it."""
    rows = stsb_rows(scores)
    write_task(folder / "glue" / "STS-B", rows, rows, rows)
    prepare(TASKS["STS-B"], folder / "glue", corpus, folder / "bin")
    return folder / "bin" / "STS-B"
