"""Clean lines of raw texts, and a tally of what went.

The rules follow the authors' published scripts (guolinke/TUPE, preprocess/pretrain, commit 4442138) as far as
Unicode's tables reach: bytes that are no UTF-8 and characters that print nothing go, white space collapses,
and lines go that have few letters or much markup or that came before. Letters are those of any script, theirs
ASCII's. Left out are what needs Moses or spaCy, joining lines that end in mid-sentence (so a text with a line
for each short sentence loses more, see --min-letters), placeholders for addresses, a word-frequency filter.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

DROPPED = ("too short", "few letters", "markup", "repeated")  # lines
REMOVED = ("undecodable bytes", "control characters", "odd line breaks")  # from within lines

LONGEST_LINE = 1_000_000  # characters; the authors drop longer lines (is_valid), here they are cut
MARKUP_SHARE = 0.05  # is_valid: with more "\\" in its characters a line is LaTeX, with more "|" a table
REMEMBERED_LINES = 1_000_000  # distinct lines among which a repeat is found; two such sets take about 150 MB

_BREAKS = re.compile("[\v\f\x85\u2028\u2029]")  # break lines in some programs, are white space here
_UNDECODABLE = re.compile("[\udc80-\udcff\ufffd]")  # surrogateescape's bytes, and what others made of such
_INVISIBLE = ("Cc", "Cf", "Co", "Cs")  # Unicode's categories: control, format, private use, surrogate
_ARTICLE = re.compile(r'<doc id="|</doc>$')  # WikiExtractor's lines around an article


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


def clean_texts(
    texts: Iterable[Path], tally: Tally, min_letters: int, min_letter_share: float
) -> Iterator[str]:
    """The clean lines of all texts that stay, and an empty line where a document ends.

    A document ends at a blank line, at the end of a file, and at WikiExtractor's `<doc>` and `</doc>`;
    between those two, blank lines only part paragraphs.
    """
    repeats = Repeats()
    for path in texts:
        print(f"cleaning {path}", flush=True)
        inside_article = False
        for line in read_lines(path, tally):
            tally.read += 1
            if _ARTICLE.match(line):
                inside_article = not line.startswith("</")
                tally.dropped["markup"] += 1
                yield ""
            elif not line:
                tally.blank += 1
                if not inside_article:
                    yield ""
            elif reason := why_drop(line, min_letters, min_letter_share) or repeats.why_drop(line):
                tally.dropped[reason] += 1
            else:
                tally.kept += 1
                yield line
        yield ""


def read_lines(path: Path, tally: Tally) -> Iterator[str]:
    """Clean lines of a text, plain or gzip, in UTF-8; LF, CRLF and CR end a line.

    Raises ValueError for UTF-16 and for a damaged gzip file.
    """
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    removed: Counter[str] = Counter()
    with gzip.open(path) if packed else path.open("rb") as file:
        try:
            if file.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise ValueError(f"{path} is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8")
            text = TextIOWrapper(file, "utf-8-sig", "surrogateescape")
            for line in _cut_lines(text, tally):
                yield clean_line(line, removed)
            tally.bytes += file.tell()
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is a damaged gzip file: {error}") from None
    tally.removed += removed
    tally.undecodable[str(path)] += removed["undecodable bytes"]


def _cut_lines(text: TextIO, tally: Tally) -> Iterator[str]:
    """Lines without their ends, those over LONGEST_LINE in parts: no line can fill the memory."""
    whole = True
    for line in iter(partial(text.readline, LONGEST_LINE), ""):
        if line == "\n" and not whole:  # ends the line that was cut; not a blank one
            whole = True
            continue
        tally.cuts += not whole
        whole = line.endswith("\n") or len(line) < LONGEST_LINE
        yield line.rstrip("\n")


class _Table(dict):
    """For str.translate: asks the rule once for each character (None: it goes)."""

    def __init__(self, rule: Callable[[str], str | None]) -> None:
        super().__init__()
        self._rule = rule

    def __missing__(self, code: int) -> str | None:
        self[code] = new = self._rule(chr(code))
        return new


def _visible(char: str) -> str | None:
    if char == "\t" or _BREAKS.match(char):
        return " "
    return None if _UNDECODABLE.match(char) or unicodedata.category(char) in _INVISIBLE else char


_VISIBLE = _Table(_visible)
_LETTERS = _Table(lambda char: char if unicodedata.category(char)[0] in "LM" else None)  # and combining marks


def clean_line(line: str, removed: Counter[str]) -> str:
    """The line with single spaces and without what prints nothing; counts in `removed` what went."""
    if not (line.isascii() and line.isprintable()):
        undecodable = len(_UNDECODABLE.findall(line))
        visible = line.translate(_VISIBLE)
        removed["undecodable bytes"] += undecodable
        removed["control characters"] += len(line) - len(visible) - undecodable
        removed["odd line breaks"] += len(_BREAKS.findall(line))
        line = visible
    return " ".join(line.split())


def why_drop(line: str, min_letters: int, min_letter_share: float) -> str | None:
    """The reason to drop a clean line, None to keep it: the authors' is_valid, for letters of all scripts."""
    letters = len(line.translate(_LETTERS))
    if letters < min_letters:
        return "too short"
    if letters < min_letter_share * len(line):
        return "few letters"
    if line[0] == "|" or max(line.count("\\"), line.count("|")) > MARKUP_SHARE * len(line):
        return "markup"
    return None


class Repeats:
    """Finds a line, whatever its case, that was among the last REMEMBERED_LINES distinct ones.

    Memory is bounded: 8-byte digests lie in a young and an old set, and a full young set becomes the old one.
    """

    def __init__(self) -> None:
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def why_drop(self, line: str) -> str | None:
        """The reason to drop a line that came before; remembers the line."""
        digest = hashlib.blake2b(line.lower().encode(), digest_size=8).digest()
        if digest in self._young:
            return "repeated"
        reason = "repeated" if digest in self._old else None
        self._young.add(digest)
        if len(self._young) == REMEMBERED_LINES:
            self._old, self._young = self._young, set()
        return reason
