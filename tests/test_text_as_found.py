"""Text as it is found: any bytes, and real files with real faults, through the whole preparation."""

from __future__ import annotations

import gzip
import os
import re
import sys
import tempfile
import unicodedata
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import sentencepiece
from conftest import ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_corpus import rows

from tupe_fairseq import corpus, glue_data
from tupe_fairseq.corpus import Settings
from tupe_fairseq.glue import TASKS
from tupe_fairseq.glue_rows import read_rows
from tupe_fairseq.line_rules import why_drop
from tupe_fairseq.vocabulary import EOS, Vocabulary

PASS_ALL = {"shrink_vocab": True, "min_letters": 1, "min_letter_share": 0.0, "max_unknown": 1.0}
EXAMPLES = int(os.environ.get("EXAMPLES", "150"))  # of bytes to try
MARKED = ("utf-8-sig", "utf-16", "utf-32")  # encodings that Python writes with a byte-order mark

normalizer = sentencepiece.SentencePieceNormalizer(
    rule_name="nmt_nfkc_cf", add_dummy_prefix=False, remove_extra_whitespaces=True, escape_whitespaces=False
)


def decoded(data: bytes) -> str:
    """What a careful reader makes of the bytes: the mark's encoding, else UTF-8, without what is neither."""
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    for mark, encoding in (
        (b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"),
        (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"), (b"\xef\xbb\xbf", "utf-8-sig"),
    ):  # fmt: skip
        if data.startswith(mark):
            return data.decode(encoding, "ignore")
    return data.decode("utf-8", "ignore")


def expected_lines(data: bytes) -> list[str]:
    """The clean lines that stay, each once: those that have a letter and are no markup."""
    stay: dict[str, str] = {}
    for line in re.split("\r\n|\r|\n", decoded(data)):
        line = re.sub("[\t\v\f\x85\u2028\u2029]", " ", line)
        line = "".join(c for c in line if c != "\ufffd" and unicodedata.category(c) not in ("Cc", "Cf", "Co"))
        line = " ".join(line.split())
        article = line.startswith('<doc id="') or line == "</doc>"
        if line and not article and why_drop(line, 1, 0.0) is None:
            stay.setdefault(line.lower(), line)
    return list(stay.values())


def with_unknown(line: str, vocabulary: Vocabulary) -> str:
    """The line as SentencePiece decodes it where a character is unknown: validation may have others."""
    known = "".join(piece for piece in vocabulary.pieces if len(piece) == 1) + " "
    return re.sub(f"[^{re.escape(known)}]+", " \u2047 ", line)


def prepared(data: bytes, folder: Path, **flags: object) -> Path:
    (folder / "text").write_bytes(data)
    corpus.prepare(Settings([folder / "text"], folder / "corpus", **flags))  # type: ignore[arg-type]
    return folder / "corpus"


def text_of(folder: Path) -> list[str]:
    """The pieces of a corpus put together again, line by line; train and valid."""
    vocabulary = Vocabulary(folder)
    return [
        vocabulary.decode(row[:-1])
        for split in ("train", "valid")
        for row in rows(folder / "bin" / split)
        if row != [EOS]
    ]


# ---- Real files ------------------------------------------------------------------------------------


class Found(NamedTuple):
    """A row of the table in docs/reliability.md."""

    file: str
    own: list[str]  # what is said with a vocabulary of its own
    english: list[str]  # or with an English one


def found() -> list[Found]:
    table = (ROOT / "docs" / "reliability.md").read_text().partition("| file | what it holds |")[2]
    cells = [line.split("|")[1:-1] for line in table.partition("\n\n")[0].splitlines()[2:]]
    quoted = [[re.findall("`([^`]+)`", cell) for cell in row] for row in cells]
    return [Found(file[0], own, english) for file, _, own, english in quoted]


FOUND = found()


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    folder = tmp_path_factory.mktemp("english") / "corpus"
    text = shared_data / "corpus" / "wikitext2_valid.txt"
    corpus.prepare(Settings([text], folder, vocab=4000))
    return folder


def words(text: str) -> str:
    return " ".join(text.split())


def test_all_files_are_in_the_table(shared_data: Path) -> None:
    ugly = shared_data / "ugly"
    files = [str(path.relative_to(ugly)) for path in ugly.rglob("*") if path.is_file()]
    assert sorted(files) == sorted(row.file for row in FOUND)


@pytest.mark.parametrize(
    "row", [row for row in FOUND if not row.file.endswith(".tsv")], ids=lambda row: row.file
)
def test_what_is_said_of_texts(
    shared_data: Path, english: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], row: Found
) -> None:
    text = str(shared_data / "ugly" / row.file)
    command = ["-o", str(tmp_path / "corpus"), "--workers", "1", text]
    for flags, phrases in (
        (["-v", "2000", "--shrink-vocab"], row.own),
        (["--vocab-from", str(english)], row.english),
    ):
        corpus.main([*command, *flags])
        said = words("".join(capsys.readouterr()))
        for phrase in phrases:
            assert phrase in said


@pytest.mark.parametrize("row", [row for row in FOUND if row.file.endswith(".tsv")], ids=lambda row: row.file)
def test_what_is_said_of_rows(
    shared_data: Path, english: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], row: Found,
) -> None:  # fmt: skip
    task = next(name for name in TASKS if name.lower() in row.file)
    monkeypatch.chdir(tmp_path)
    Path(task).mkdir()
    Path(task, "dev.tsv").write_bytes((shared_data / "ugly" / row.file).read_bytes())
    said = ""
    for flags in ([], ["--on-bad-row", "skip"]):
        monkeypatch.setattr(
            sys, "argv", ["glue_data", "-g", ".", "-c", str(english), "-o", "bin", *flags, task]
        )
        try:
            glue_data.main()
        except SystemExit as end:
            said += str(end)
        said += "".join(capsys.readouterr())
    for phrase in row.english:
        if not phrase.startswith("--"):
            assert phrase in said


# ---- Any bytes -------------------------------------------------------------------------------------

ODD = st.sampled_from(
    [
        *(
            b"\n",
            b"\r",
            b"\r\n",
            b"\n\n",
            b"\0",
            b"\x1a",
            b"\t",
            b"  ",
            b"\xff",
            b"\xe9",
            b"\xed\xa0\x80",
            b"\xf0\x9f",
        ),
        *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b'<doc id="1" title="x">\n', b"</doc>\n"),
        *(b"<mask>", b"</s>", b"<unk>", b"| ", b"\\\\", b"the lazy dog ", b"The Lazy Dog "),
        *map(
            str.encode,
            "\x85\u2028\ufffd\u2581\u3164\u115f\u2800\u00ad\u0301\ufb01\u00a8\u5b57\U0001f600\ue000\u200b",
        ),
        *map(str.encode, ("naïve café ", "हिन्दी ", "ไทย ")),
        "naïve café ".encode("latin1"),
    ]
)
PIECES = st.lists(ODD | st.binary(max_size=8) | st.text(max_size=8).map(str.encode), max_size=30)
MARKED_TEXT = st.builds(str.encode, st.text(), st.sampled_from(MARKED))
BYTES = st.binary(max_size=300) | PIECES.map(b"".join) | MARKED_TEXT
BYTES = BYTES | BYTES.map(lambda data: gzip.compress(data, mtime=0))


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=EXAMPLES)
@given(BYTES)
def test_any_bytes_are_prepared_or_refused_in_a_sentence(data: bytes) -> None:
    """Nothing but what is counted as dropped is lost: the pieces give the lines back, normalised."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            folder = prepared(data, Path(scratch), **PASS_ALL)
        except ValueError as error:
            assert "\n" not in str(error)
            assert [path.name for path in Path(scratch).iterdir()] == ["text"]
            if "damaged gzip" not in str(error):
                assert len(expected_lines(data)) < 2, error
            return
        assert Counter(text_of(folder)) == Counter(
            with_unknown(normalizer.normalize(line), Vocabulary(folder)) for line in expected_lines(data)
        )


@settings(max_examples=2 * EXAMPLES)
@given(st.binary(max_size=300) | PIECES.map(b"".join), st.booleans())
def test_any_rows_are_read_or_refused_in_a_sentence(data: bytes, header: bool) -> None:
    """Of a row file, every line is a row or is named."""
    if header:
        data = b"index\tsentence1\tsentence2\tlabel\n" + data
    with tempfile.TemporaryDirectory() as scratch:
        path, bad = Path(scratch, "dev.tsv"), []
        path.write_bytes(data)
        try:
            good = list(read_rows(path, TASKS["RTE"], "valid", bad.append))
        except ValueError as error:
            assert not header
            assert "\n" not in str(error)
            assert len(str(error)) < 500
        else:
            assert len(good) + len(bad) == len(data.splitlines()) - 1 if b"\r" not in data else True
            assert all("\n" not in sentence for sentence in bad)
