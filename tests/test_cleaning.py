"""Cleaning: what goes from a line, which lines go, and that all of it is counted."""

from __future__ import annotations

import gzip
import random
from collections import Counter
from pathlib import Path

import pytest
from tiny_corpus import sentence

from tupe_fairseq import cleaning
from tupe_fairseq.cleaning import Repeats, Tally, clean_texts, read_lines
from tupe_fairseq.line_rules import REMOVED, clean_line, digest, why_drop
from tupe_fairseq.pool import start_workers
from tupe_fairseq.progress import Stage


def cleaned(*texts: Path) -> tuple[list[str], Tally]:
    """Lines that stay, with the authors' limits, and the tally."""
    tally, stage = Tally(), Stage("cleaning")
    with start_workers(1) as workers:
        lines = list(clean_texts(texts, tally, 50, 0.7, workers, stage))
    assert stage.bytes == tally.bytes
    return lines, tally


@pytest.mark.parametrize(
    ("line", "clean", "undecodable", "control", "breaks"),
    [
        ("Plain text.", "Plain text.", 0, 0, 0),
        ("  two \t\t words\u00a0\u3000here ", "two words here", 0, 0, 0),
        ("a\vb\fc\x85d\u2028e\u2029f", "a b c d e f", 0, 0, 5),
        ("in\u00advis\u200bi\ufeffble\x00\x07\x1f", "invisible", 0, 6, 0),
        ("caf\udce9 \ufffdx", "caf x", 2, 0, 0),
        ("private \ue000use", "private use", 0, 1, 0),
        ("हिन्दी ไทยที่", "हिन्दी ไทยที่", 0, 0, 0),
        ("printable  \ufffd", "printable", 1, 0, 0),
    ],
)
def test_clean_line(line: str, clean: str, undecodable: int, control: int, breaks: int) -> None:
    removed: Counter[str] = Counter()
    assert clean_line(line, removed) == clean
    assert [removed[kind] for kind in REMOVED] == [undecodable, control, breaks]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("a" * 49, "too short"),
        ("a" * 50, None),
        ("1" * 49 + "a" * 49, "too short"),
        ("a" * 70 + "." * 30, None),
        ("a" * 69 + "." * 31, "few letters"),
        ("| " + "a" * 60, "markup"),
        ("a" * 95 + "|" * 5, None),
        ("a" * 94 + "|" * 6, "markup"),
        ("a" * 94 + "\\" * 6, "markup"),
        ("नि" * 25, None),  # 25 letters and 25 vowel signs
        ("字" * 50, None),
    ],
)
def test_why_drop(line: str, reason: str | None) -> None:
    assert why_drop(line, min_letters=50, min_letter_share=0.7) == reason


def test_repeats_are_found_among_the_last_distinct_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "REMEMBERED_LINES", 3)
    repeats = Repeats()
    reasons = [repeats.why_drop(digest(line)) for line in "aAbcadefghb"]
    #        a repeat with two other lines between, but none with five
    assert reasons == [None, "repeated", None, None, "repeated"] + [None] * 6


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\r\nthree\rfour", ["one", "two", "three", "four"]),
        (b"\xef\xbb\xbfone\r\n\r\ntwo\r\n", ["one", "", "two"]),
        ("one\x85two\ftwo\u2028two\n".encode(), ["one two two two"]),
        (b"one \t \n \t \ntwo", ["one", "", "two"]),
        (b"caf\xe9 one\nna\xefve\xff two", ["caf one", "nave two"]),
        (b"", []),
        (b"\xef\xbb\xbf", []),
        ("\ufeffone\r\ncaf\u00e9\n\n\u5b57".encode("utf-16-le"), ["one", "caf\u00e9", "", "\u5b57"]),
        ("\ufeffone\r\ncaf\u00e9".encode("utf-16-be"), ["one", "caf\u00e9"]),
        ("\ufeffone\rcaf\u00e9".encode("utf-32-le"), ["one", "caf\u00e9"]),
        ("\ufeffone\ncaf\u00e9".encode("utf-32-be"), ["one", "caf\u00e9"]),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_read_lines(tmp_path: Path, data: bytes, lines: list[str], packed: bool) -> None:
    path, tally = tmp_path / "text", Tally()
    path.write_bytes(gzip.compress(data) if packed else data)
    assert list(read_lines(path, tally)) == lines
    assert tally.bytes == len(data)
    assert not tally.removed["control characters"]
    latin = data.startswith(b"caf")
    assert tally.undecodable[str(path)] == (3 if latin else 0)


@pytest.mark.parametrize(
    ("text", "lines", "cuts"),
    [
        ("0123456789\n\nabc", ["0123456789", "", "abc"], 0),
        ("0123456789abc\n\nabc", ["0123456789", "abc", "", "abc"], 1),
        ("0123456789" * 3 + "\nabc", ["0123456789"] * 3 + ["abc"], 2),
        ("0123456789" * 3, ["0123456789"] * 3, 2),
        ("one two three four\n\nfive six seven", ["one two", "three", "four", "", "five six", "seven"], 3),
        ("0123456789 \nabc", ["0123456789", "abc"], 0),
        (" " * 30 + "a" + " " * 30 + "b\n \nc", ["a", "b", "", "c"], 2),
    ],
)
def test_long_lines_are_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, lines: list[str], cuts: int
) -> None:
    monkeypatch.setattr(cleaning, "LONGEST_LINE", 10)
    (tmp_path / "text").write_text(text)
    tally = Tally()
    assert list(read_lines(tmp_path / "text", tally)) == lines
    assert tally.cuts == cuts


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (gzip.compress(random.Random(1).randbytes(5000), mtime=0)[:-2000], "damaged gzip file"),
        (gzip.compress(b"text", mtime=0)[:-5] + b"wrong", "damaged gzip file"),
    ],
)
def test_unreadable_text(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "text").write_bytes(data)
    with pytest.raises(ValueError, match=words):
        list(read_lines(tmp_path / "text", Tally()))


@pytest.mark.parametrize("characters", [1, 100, 10**6])
def test_every_line_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, characters: int) -> None:
    monkeypatch.setattr(cleaning, "CHUNK_CHARACTERS", characters)
    kept = [sentence(i) for i in range(6)]
    lines = [
        kept[0], kept[1], "Too short.", kept[1].upper(), "", "",
        kept[2], "1234567890 " * 10 + "a" * 60, "| table | " + "a" * 60, kept[3] + "\x07", "",
        "short", "", kept[4], kept[0], kept[5],
    ]  # fmt: skip
    (tmp_path / "text").write_bytes("\r\n".join(lines).encode())
    stay, tally = cleaned(tmp_path / "text")
    assert stay == [*kept[:2], "", "", *kept[2:4], "", "", *kept[4:], ""]
    assert (tally.read, tally.blank, tally.kept) == (16, 4, 6)
    assert tally.dropped == {"too short": 2, "few letters": 1, "markup": 1, "repeated": 2}
    assert tally.removed == {"control characters": 1}


def test_repeats_are_found_across_texts(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(sentence(0))
    stay, tally = cleaned(tmp_path / "a", tmp_path / "b")
    assert stay == [sentence(0), "", ""]
    assert tally.dropped == {"repeated": 1}


def test_wikiextractor_articles_are_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "CHUNK_CHARACTERS", 1)  # an article goes over many chunks
    a, b, c, d = (sentence(i) for i in range(4))
    text = f'<doc id="1" title="A">\nA\n\n{a}\n\n{b}\n</doc>\n<doc id="2" title="B">\n{c}\n</doc>\n{d}\n'
    (tmp_path / "text").write_text(text)
    stay, tally = cleaned(tmp_path / "text")
    assert stay == ["", a, b, "", "", c, "", d, ""]
    assert tally.dropped == {"markup": 4, "too short": 1}


def test_a_text_ends_an_article(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(f'<doc id="1">\n{sentence(0)}')
    (tmp_path / "b").write_text(f"{sentence(1)}\n\n{sentence(2)}")
    stay, _ = cleaned(tmp_path / "a", tmp_path / "b")
    assert stay == ["", sentence(0), "", sentence(1), "", sentence(2), ""]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_texts_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    """Lines come while most of the text is not yet read, with workers, too, and from blank lines alone."""
    monkeypatch.setattr(cleaning, "CHUNK_CHARACTERS", 100)
    data = "\n".join(["", *(sentence(i) for i in range(5000))]).encode()
    (tmp_path / "text").write_bytes(gzip.compress(data, 0) if packed else data)
    tally = Tally()
    with start_workers(2) as workers:
        lines = clean_texts([tmp_path / "text"], tally, 50, 0.7, workers, Stage("cleaning"))
        assert next(lines) == ""
        assert 0 < tally.bytes < len(data) / 4
        assert list(lines) == [*(sentence(i) for i in range(5000)), ""]
    assert tally.bytes == len(data)
