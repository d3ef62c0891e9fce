"""Clean text to ids: learns the vocabulary, then processes encode the text, each a range of bytes at a time.

A row is one line with `</s>` behind it; an empty line, which parts documents, gives a row of `</s>` alone:
that is how fairseq's `--sample-break-mode complete_doc` sees documents. Memory does not grow with the text,
and any number of processes gives the same rows.
"""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, reduce
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import vocabulary
from .token_file import TokenFile, concatenate
from .vocabulary import EOS, Vocabulary, VocabularyTooLarge

TRAINING_BYTES = 300_000_000  # of text for SentencePiece, which takes some 4 bytes of memory for each
RANGE_BYTES = 4 << 20  # of text that a process encodes at a time


def learn_vocabulary(text: Path, size: int, shrink: bool, folder: Path) -> list[str]:
    """Learns the vocabulary of a clean text and writes it to the folder; returns what is worth telling.

    Raises ValueError for a size that the text cannot give, unless it may shrink.
    """
    notes = []
    if text.stat().st_size > TRAINING_BYTES:
        notes.append(f"the vocabulary is learnt from {TRAINING_BYTES:,} bytes, evenly spread over the text")
    try:
        vocabulary.train(sampled_lines(text, TRAINING_BYTES), size, folder)
    except VocabularyTooLarge as error:
        if not shrink:
            raise ValueError(f"{error}; give that or less, or --shrink-vocab") from None
        vocabulary.train(sampled_lines(text, TRAINING_BYTES), error.largest, folder)
        notes.append(f"the text gives {error.largest:,} pieces, not {size:,}: the vocabulary shrank")
    return notes


def sampled_lines(path: Path, budget: int) -> Iterator[str]:
    """Lines of a clean text, empty ones left out, evenly spread over it, of about `budget` bytes together."""
    size = path.stat().st_size
    seen = taken = 0
    with path.open("rb") as file:
        for line in file:
            seen += len(line)
            if taken * size < min(budget, size) * seen and line != b"\n":
                taken += len(line)
                yield line.decode().rstrip("\n")


class Encoded(NamedTuple):
    """A text as ids."""

    counts: np.ndarray  # (vocabulary,) how often each id stands in it
    rows: int
    longest: int  # ids in its longest row, `</s>` included

    def and_then(self, other: Encoded) -> Encoded:
        """Both texts as one."""
        return Encoded(self.counts + other.counts, self.rows + other.rows, max(self.longest, other.longest))


class _Range(NamedTuple):
    """Work for one process: the lines of `text` that begin in bytes [begin, end), to `part`.bin and .idx."""

    text: Path
    begin: int
    end: int
    vocabulary: Path
    part: Path


def encode(text: Path, folder: Path, prefix: Path, workers: int) -> Encoded:
    """Writes a clean text that is not empty as PREFIX.bin and PREFIX.idx, with the vocabulary in the folder.

    Raises ChildProcessError if a worker is killed.
    """
    with tempfile.TemporaryDirectory(dir=text.parent) as parts:
        ranges = [
            _Range(text, begin, begin + RANGE_BYTES, folder, Path(parts, str(begin)))
            for begin in range(0, text.stat().st_size, RANGE_BYTES)
        ]
        total = reduce(Encoded.and_then, _in_processes(workers, ranges))
        concatenate([one.part for one in ranges], prefix)
    return total


def _in_processes(workers: int, ranges: list[_Range]) -> Iterator[Encoded]:
    """Results in the order of the ranges, which are few enough to queue at once."""
    if workers == 1:
        yield from map(_encode_range, ranges)
        return
    try:
        with ProcessPoolExecutor(workers, initializer=_leave_signals_to_the_parent) as pool:
            yield from pool.map(_encode_range, ranges)
    except BrokenProcessPool:
        raise ChildProcessError(
            "a worker was killed, perhaps for want of memory; try fewer --workers"
        ) from None


def _leave_signals_to_the_parent() -> None:
    """Ctrl-C reaches workers too, but the parent alone acts on it; SIGTERM ends one, as the pool expects."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@lru_cache(maxsize=1)
def _vocabulary(folder: Path) -> Vocabulary:
    """Loaded once in each process."""
    return Vocabulary(folder)


def _encode_range(work: _Range) -> Encoded:
    pieces = _vocabulary(work.vocabulary)
    rows = [[*pieces.encode(line), EOS] for line in _lines_between(work.text, work.begin, work.end)]
    with TokenFile(work.part, len(pieces)) as file:
        for row in rows:
            file.add(row)
    ids = np.fromiter(chain.from_iterable(rows), np.int64)
    return Encoded(np.bincount(ids, minlength=len(pieces)), len(rows), max(map(len, rows), default=0))


def _lines_between(path: Path, begin: int, end: int) -> Iterator[str]:
    """The lines that begin in bytes [begin, end), without their ends."""
    with path.open("rb") as file:
        if begin:
            file.seek(begin - 1)
            file.readline()  # the rest of a line that began earlier, or the end of the one before
        while file.tell() < end and (line := file.readline()):
            yield line.decode().rstrip("\n")
