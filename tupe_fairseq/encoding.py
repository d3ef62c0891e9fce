"""Clean text to ids: learns the vocabulary, then workers encode the text, each a chunk at a time.

A row is one line with `</s>` behind it; an empty line, which parts documents, gives a row of `</s>` alone:
that is how fairseq's `--sample-break-mode complete_doc` sees documents. Memory does not grow with the text,
and any number of workers gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import vocabulary
from .pool import Workers
from .progress import Stage
from .token_file import TokenFile, id_type
from .vocabulary import EOS, Vocabulary, VocabularyTooLarge

# Of text to learn the vocabulary from. Memory goes with the characters of its distinct words, about 44 bytes
# each: 32 MB of source code, the worst of texts, take 620 MB, and prose a quarter of that. 300 MB of the code
# (3.8 GB of memory) would encode other code in 0.1% fewer tokens; 8 MB in 0.4% more.
TRAINING_BYTES = 32_000_000
CHUNK_BYTES = 1 << 20  # of text that a process encodes at a time
REMEMBERED_WORDS = 200_000  # in each process; with their ids they take some 35 MB
LONGEST_WORD = 32  # characters; longer words hardly come again, and would take more memory


def learn_vocabulary(text: Path, size: int, shrink: bool, folder: Path, stage: Stage) -> list[str]:
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
    stage.bytes = min(TRAINING_BYTES, text.stat().st_size)
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


def encode(text: Path, folder: Path, prefix: Path, workers: Workers, stage: Stage) -> Encoded:
    """Writes a clean text that is not empty as PREFIX.bin and PREFIX.idx, with the vocabulary that
    `learn_vocabulary` made in the folder.

    Raises ChildProcessError if a worker is killed.
    """
    size = len(Vocabulary(folder))
    counts = np.zeros(size, np.int64)
    rows = longest = 0
    with TokenFile(prefix, size) as file:
        for ids, sizes, read in workers.map(partial(_encode_lines, folder), _chunks(text)):
            file.add_rows(ids, sizes)
            counts += np.bincount(ids, minlength=size)
            rows += sizes.size
            longest = max(longest, int(sizes.max()))
            stage.bytes += read
            stage.tell()
    return Encoded(counts, rows, longest)


def _chunks(text: Path) -> Iterator[bytes]:
    """All lines of a text, some CHUNK_BYTES at a time."""
    with text.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk + file.readline()


class _Words(dict[str, bytes]):
    """The ids of words, as the bytes that a token file holds; a word encoded once is remembered.

    A word is what stands between spaces. No piece reaches over a space, as SentencePiece learns them, so
    that the ids of a line are those of its words, and few words of a text are new.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._vocabulary = Vocabulary(folder)
        self.type = id_type(len(self._vocabulary))

    def __missing__(self, word: str) -> bytes:
        ids = np.array(self._vocabulary.encode(word), self.type).tobytes()
        if len(word) <= LONGEST_WORD:
            if len(self) == REMEMBERED_WORDS:
                self.clear()
            self[word] = ids
        return ids


@lru_cache(maxsize=1)
def _words(folder: Path) -> _Words:
    """Loaded once in each process."""
    return _Words(folder)


def _encode_lines(folder: Path, text: bytes) -> tuple[np.ndarray, np.ndarray, int]:
    """Ids of all rows, the sizes of the rows, and the bytes of the text."""
    words = _words(folder)
    end = np.array([EOS], words.type).tobytes()
    lines = text.decode().removesuffix("\n").split("\n")
    rows = [b"".join(map(words.__getitem__, line.split(" "))) + end for line in lines]
    sizes = np.array([len(row) for row in rows]) // words.type.itemsize
    return np.frombuffer(b"".join(rows), words.type), sizes, len(text)
