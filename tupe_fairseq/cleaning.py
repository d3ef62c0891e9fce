"""Clean lines of raw texts, and a tally of what went.

Workers clean and judge lines, each line for itself, by the rules of `line_rules`. Here it is decided, in the
order of the lines, which of them came before, and where a document ends.
"""

from __future__ import annotations

import codecs
import gzip
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import NamedTuple, TextIO

from tqdm import tqdm

from .line_rules import clean_line, digest, why_drop
from .pool import Workers
from .progress import Stage

CHUNK_CHARACTERS = 1_000_000  # of text that a process cleans at a time
LONGEST_LINE = 10_000  # characters, some 2,000 tokens; the authors drop lines over 1,000,000 (is_valid)
REMEMBERED_LINES = 1_000_000  # distinct lines among which a repeat is found; two such sets take about 150 MB

# Encodings with their byte-order marks, those of four bytes before those that they begin with. What cannot be
# decoded becomes U+FFFD; only UTF-8 has a way to keep such bytes.
_MARKED = (
    (codecs.BOM_UTF32_LE, "utf-32", "replace"),
    (codecs.BOM_UTF32_BE, "utf-32", "replace"),
    (codecs.BOM_UTF16_LE, "utf-16", "replace"),
    (codecs.BOM_UTF16_BE, "utf-16", "replace"),
)

_ARTICLE_MARK = re.compile(r'<doc id="|</doc>$')  # WikiExtractor's lines around an article
_ARTICLE, _BLANK = "article", "blank"  # fates of lines, beside the reasons to drop one


@dataclass
class Tally:
    """What the cleaning met. Every line read is blank, kept or dropped."""

    bytes: int = 0  # unpacked
    read: int = 0
    blank: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # lines by reason
    removed: Counter[str] = field(default_factory=Counter)  # characters by kind
    undecodable: Counter[str] = field(default_factory=Counter)  # bytes by file
    cuts: int = 0  # in lines over LONGEST_LINE; each gives one more line read

    def count_removed(self, path: Path, removed: Counter[str]) -> None:
        """Adds what went from lines of a text."""
        self.removed += removed
        self.undecodable[str(path)] += removed["undecodable bytes"]


class _Chunk(NamedTuple):
    """Lines of a text, for one process to clean."""

    path: Path
    lines: list[str]


class _Judged(NamedTuple):
    """A chunk once it is cleaned."""

    path: Path
    lines: list[tuple[str, str | bytes]]  # line and fate; the fate of one that may stay is its digest
    removed: Counter[str]  # characters by kind


def clean_texts(
    texts: Iterable[Path],
    tally: Tally,
    min_letters: int,
    min_letter_share: float,
    workers: Workers,
    stage: Stage,
) -> Iterator[str]:
    """The clean lines of all texts that stay, and an empty line where a document ends.

    A document ends at a blank line, at the end of a file, and at WikiExtractor's `<doc>` and `</doc>`;
    between those two, blank lines only part paragraphs.
    """
    judge = partial(_judge, min_letters=min_letters, min_letter_share=min_letter_share)
    repeats = Repeats()
    inside_article = False
    for path, lines, removed in workers.map(judge, _chunks(texts, tally)):
        stage.bytes = tally.bytes
        stage.tell()
        tally.count_removed(path, removed)
        if not lines:
            inside_article = False
            yield ""
        for line, fate in lines:
            tally.read += 1
            if fate == _ARTICLE:
                inside_article = not line.startswith("</")
                tally.dropped["markup"] += 1
                yield ""
            elif fate == _BLANK:
                tally.blank += 1
                if not inside_article:
                    yield ""
            elif reason := fate if isinstance(fate, str) else repeats.why_drop(fate):
                tally.dropped[reason] += 1
            else:
                tally.kept += 1
                yield line


def read_lines(path: Path, tally: Tally) -> Iterator[str]:
    """Clean lines of a text, plain or gzip, in UTF-8, or in UTF-16 or UTF-32 with a byte-order mark; LF, CRLF
    and CR end a line.

    Raises ValueError for a damaged gzip file.
    """
    removed: Counter[str] = Counter()
    for lines in _raw_lines(path, tally):
        for line in lines:
            yield clean_line(line, removed)
    tally.count_removed(path, removed)


def _chunks(texts: Iterable[Path], tally: Tally) -> Iterator[_Chunk]:
    """All lines of the texts; an empty chunk ends a text."""
    for path in texts:
        tqdm.write(f"cleaning {path}")  # above a bar, if there is one
        sys.stdout.flush()
        for lines in _raw_lines(path, tally):
            yield _Chunk(path, lines)
        yield _Chunk(path, [])


def _judge(chunk: _Chunk, min_letters: int, min_letter_share: float) -> _Judged:
    """Cleans lines, and judges each without knowing the others."""
    removed: Counter[str] = Counter()
    judged: list[tuple[str, str | bytes]] = []
    for raw in chunk.lines:
        line = clean_line(raw, removed)
        if _ARTICLE_MARK.match(line):
            judged.append((line, _ARTICLE))
        elif not line:
            judged.append(("", _BLANK))
        elif reason := why_drop(line, min_letters, min_letter_share):
            judged.append(("", reason))
        else:
            judged.append((line, digest(line)))
    return _Judged(chunk.path, judged, removed)


def plain_bytes(texts: Sequence[Path]) -> int | None:
    """How large texts are together; not known, where one is packed."""
    return None if any(map(_is_packed, texts)) else sum(path.stat().st_size for path in texts)


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _raw_lines(path: Path, tally: Tally) -> Iterator[list[str]]:
    """Lines of a text as they are, some CHUNK_CHARACTERS at a time."""
    with gzip.open(path) if _is_packed(path) else path.open("rb") as file:
        try:
            start = file.peek(4)
            encoding, errors = next(
                (how for mark, *how in _MARKED if start.startswith(mark)), ("utf-8-sig", "surrogateescape")
            )
            text = TextIOWrapper(file, encoding, errors)
            before = tally.bytes
            for batch in _batches(_cut_lines(text, tally)):
                tally.bytes = before + file.tell()
                yield batch
            tally.bytes = before + file.tell()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is a damaged gzip file: {error}") from None


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for line in lines:
        batch.append(line)
        characters += len(line) + 1
        if characters >= CHUNK_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _cut_lines(text: TextIO, tally: Tally) -> Iterator[str]:
    """Lines without their ends; those over LONGEST_LINE in parts, cut at a space if there is one.

    No line can fill the memory, and a book on one line is a text of many.
    """
    rest = ""
    while line := rest + text.readline(LONGEST_LINE + 1 - len(rest)):
        inside, end = bool(rest), len(line)
        if end > LONGEST_LINE and line[-1] != "\n":
            space = line.rfind(" ", LONGEST_LINE // 2)
            end = space if space > 0 else LONGEST_LINE
        part, rest = line[:end], line[end:]
        if (inside or rest) and part.isspace():  # of a line that goes on; not a blank one
            continue
        tally.cuts += inside
        yield part.rstrip("\n")


class Repeats:
    """Finds a line, by its digest, that was among the last REMEMBERED_LINES distinct ones.

    Memory is bounded: digests lie in a young and an old set, and a full young set becomes the old one.
    """

    def __init__(self) -> None:
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def why_drop(self, digest: bytes) -> str | None:
        """The reason to drop a line that came before; remembers the line."""
        if digest in self._young:
            return "repeated"
        reason = "repeated" if digest in self._old else None
        self._young.add(digest)
        if len(self._young) == REMEMBERED_LINES:
            self._old, self._young = self._young, set()
        return reason
