"""Clean text to ids: the vocabulary it is given, and the same rows from any number of processes."""

from __future__ import annotations

import signal
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_corpus import TWENTY, rows, written

from tupe_fairseq import encoding
from tupe_fairseq.encoding import Encoded, encode, learn_vocabulary, sampled_lines
from tupe_fairseq.vocabulary import EOS, Vocabulary


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return written(tmp_path / "text", TWENTY)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    assert learn_vocabulary(written(folder / "text", TWENTY), 60, False, folder) == []
    return folder


# ---- The vocabulary --------------------------------------------------------------------------------


def test_a_vocabulary_too_large_may_shrink(text: Path, tmp_path: Path) -> None:
    words = r"too large for this text: it gives at most -v (\d+); give that or less, or --shrink-vocab$"
    with pytest.raises(ValueError, match=words) as caught:
        learn_vocabulary(text, 100_000, False, tmp_path)
    largest = int(str(caught.value).partition("at most -v ")[2].partition(";")[0])
    note = f"the text gives {largest:,} pieces, not 100,000: the vocabulary shrank"
    assert learn_vocabulary(text, 100_000, True, tmp_path) == [note]
    assert len(Vocabulary(tmp_path)) == largest
    assert learn_vocabulary(text, largest, False, tmp_path) == []


def test_large_texts_are_sampled(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "TRAINING_BYTES", 5000)
    note = "the vocabulary is learnt from 5,000 bytes, evenly spread over the text"
    assert learn_vocabulary(text, 60, False, tmp_path) == [note]


def test_sample_is_spread_evenly(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"line {i:03}\n" for i in range(100)))  # 9 bytes each
    sample = list(sampled_lines(tmp_path / "text", 450))
    assert sample == [f"line {i:03}" for i in range(0, 100, 2)]
    assert len(list(sampled_lines(tmp_path / "text", 10_000))) == 100


# ---- The ids ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "size"), [(1, 4 << 20), (1, 100), (3, 100), (3, 1000), (2, 4 << 20)])
def test_rows_are_the_lines(
    vocabulary: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, size: int
) -> None:
    monkeypatch.setattr(encoding, "RANGE_BYTES", size)
    encoded = encode(text, vocabulary, tmp_path / "rows", workers)
    pieces = Vocabulary(vocabulary)
    expected = [[*pieces.encode(line), EOS] for line in text.read_text().splitlines()]
    assert rows(tmp_path / "rows") == expected
    counts = Counter(i for row in expected for i in row)
    assert encoded.counts.tolist() == [counts[i] for i in range(60)]
    assert (encoded.rows, encoded.longest) == (len(expected), max(map(len, expected)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.bin", "rows.idx", "text"]


@given(st.lists(st.text(alphabet="abé", max_size=9)), st.integers(1, 20))
def test_ranges_hold_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], size: int
) -> None:
    path = tmp_path_factory.mktemp("ranges") / "text"
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    begins = range(0, path.stat().st_size, size)
    assert [line for begin in begins for line in encoding._lines_between(path, begin, begin + size)] == lines


# ---- Workers and signals ---------------------------------------------------------------------------

encode_range = encoding._encode_range


def signalled(number: int, work: encoding._Range) -> Encoded:
    signal.raise_signal(number)
    return encode_range(work)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_worker_is_told(
    vocabulary: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(encoding, "_encode_range", partial(signalled, number))
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as corpus.main does
    try:
        with pytest.raises(ChildProcessError, match="try fewer --workers"):
            encode(text, vocabulary, tmp_path / "rows", 2)
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert list(tmp_path.iterdir()) == [text]


def test_workers_leave_interrupts_to_the_parent(
    vocabulary: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "_encode_range", partial(signalled, signal.SIGINT))
    assert encode(text, vocabulary, tmp_path / "rows", 2).rows == len(text.read_text().splitlines())
