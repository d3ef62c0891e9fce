"""The rules for a line: what goes from within it, and why all of it goes.

They follow the authors' published scripts (guolinke/TUPE, preprocess/pretrain, commit 4442138) as far as
Unicode's tables reach: bytes that are no UTF-8 and characters that print nothing go, white space collapses,
and lines go that have few letters or much markup. Letters are those of any script, theirs ASCII's. Left out
are what needs Moses or spaCy, joining lines that end in mid-sentence (so a text with a line for each short
sentence loses more, see --min-letters), placeholders for addresses, a word-frequency filter.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Callable

DROPPED = ("too short", "few letters", "markup", "repeated")  # lines
REMOVED = ("undecodable bytes", "control characters", "odd line breaks")  # from within lines

MARKUP_SHARE = 0.05  # is_valid: with more "\\" in its characters a line is LaTeX, with more "|" a table

_BREAKS = re.compile("[\v\f\x85\u2028\u2029]")  # break lines in some programs, are white space here
_UNDECODABLE = re.compile("[\udc80-\udcff\ufffd]")  # surrogateescape's bytes, and what others made of such
_INVISIBLE = ("Cc", "Cf", "Co", "Cs")  # Unicode's categories: control, format, private use, surrogate


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
    if not line.isprintable() or "\ufffd" in line:
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


def digest(line: str) -> bytes:
    """8 bytes, equal for lines that differ in case alone."""
    return hashlib.blake2b(line.lower().encode(), digest_size=8).digest()
