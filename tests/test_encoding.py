"""Clean text to ids: the vocabulary it is given, and the same rows from any number of workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_corpus import TWENTY, rows, written

from tupe_fairseq import encoding
from tupe_fairseq.encoding import encode, learn_vocabulary, sampled_lines
from tupe_fairseq.pool import start_workers
from tupe_fairseq.progress import Stage
from tupe_fairseq.vocabulary import EOS, Vocabulary, train


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return written(tmp_path / "text", TWENTY)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    assert learn_vocabulary(written(folder / "text", TWENTY), 60, False, folder, Stage("")) == []
    return folder


# ---- The vocabulary --------------------------------------------------------------------------------


def test_a_vocabulary_too_large_may_shrink(text: Path, tmp_path: Path) -> None:
    words = r"too large for this text: it gives at most -v (\d+); give that or less, or --shrink-vocab$"
    with pytest.raises(ValueError, match=words) as caught:
        learn_vocabulary(text, 100_000, False, tmp_path, Stage(""))
    largest = int(str(caught.value).partition("at most -v ")[2].partition(";")[0])
    note = f"the text gives {largest:,} pieces, not 100,000: the vocabulary shrank"
    assert learn_vocabulary(text, 100_000, True, tmp_path, Stage("")) == [note]
    assert len(Vocabulary(tmp_path)) == largest
    assert learn_vocabulary(text, largest, False, tmp_path, Stage("")) == []


def test_large_texts_are_sampled(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "TRAINING_BYTES", 5000)
    note = "the vocabulary is learnt from 5,000 bytes, evenly spread over the text"
    assert learn_vocabulary(text, 60, False, tmp_path, Stage("")) == [note]


def test_sample_is_spread_evenly(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"line {i:03}\n" for i in range(100)))  # 9 bytes each
    sample = list(sampled_lines(tmp_path / "text", 450))
    assert sample == [f"line {i:03}" for i in range(0, 100, 2)]
    assert len(list(sampled_lines(tmp_path / "text", 10_000))) == 100


# ---- The ids ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "size"), [(1, 1 << 20), (1, 1), (3, 1), (3, 1000), (2, 1 << 20)])
@pytest.mark.parametrize("remembered", [1, 1000])
def test_rows_are_the_lines(
    vocabulary: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    number: int, size: int, remembered: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(encoding, "CHUNK_BYTES", size)
    monkeypatch.setattr(encoding, "REMEMBERED_WORDS", remembered)
    stage = Stage("encoding")
    with start_workers(number) as workers:
        encoded = encode(text, vocabulary, tmp_path / "rows", workers, stage)
    pieces = Vocabulary(vocabulary)
    expected = [[*pieces.encode(line), EOS] for line in text.read_text().splitlines()]
    assert rows(tmp_path / "rows") == expected
    counts = Counter(i for row in expected for i in row)
    assert encoded.counts.tolist() == [counts[i] for i in range(60)]
    assert (encoded.rows, encoded.longest) == (len(expected), max(map(len, expected)))
    assert stage.bytes == text.stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.bin", "rows.idx", "text"]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    """A vocabulary with the specials' names, marks and ligatures in its reach."""
    folder = tmp_path_factory.mktemp("real")
    text = (shared_data / "corpus" / "wikitext2_valid.txt").read_text(encoding="utf-8")
    train([*text.splitlines(), "▁ \u0308 <unk> ﬁ ¨"], 2000, folder)
    return folder


WORDS = st.sampled_from(
    ["", "the", "The", "unfamiliar", "▁", "a▁b", "<unk>", "</s>", "¨", "´", "e\u0301", "\u0301"]
)


@given(
    st.lists(
        st.lists(WORDS | st.text(st.characters(exclude_characters="\n", codec="utf-8")), max_size=6),
        min_size=1,
    )
)
def test_words_alone_have_the_ids_that_they_have_in_their_line(real: Path, lines: list[list[str]]) -> None:
    text = [" ".join(words) for words in lines]
    expected = [[*Vocabulary(real).encode(line), EOS] for line in text]
    ids, sizes, _ = encoding._encode_lines(real, "".join(f"{line}\n" for line in text).encode())
    assert sizes.tolist() == list(map(len, expected))
    assert ids.tolist() == [i for row in expected for i in row]


@pytest.mark.parametrize("word, remembered", [("dog", True), ("d" * 32, True), ("d" * 33, False)])
def test_words_are_remembered_within_limits(
    vocabulary: Path, monkeypatch: pytest.MonkeyPatch, word: str, remembered: bool
) -> None:
    monkeypatch.setattr(encoding, "REMEMBERED_WORDS", 3)
    words = encoding._Words(vocabulary)
    first = words[word]
    assert words[word] == first
    assert list(words) == [word] * remembered
    for i in range(9):
        assert words[str(i)]
        assert len(words) <= 3
