"""The vocabulary: one id means one piece for SentencePiece, fairseq and us."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sentencepiece
from fairseq.data import Dictionary
from hypothesis import assume, given
from hypothesis import strategies as st

from tupe_fairseq import vocabulary
from tupe_fairseq.vocabulary import BOS, EOS, MASK, PAD, SPECIALS, UNK, Vocabulary, VocabularyTooLarge, train

NAMES = (*SPECIALS, MASK)
TEXT = [
    "The quick brown fox jumps over the lazy dog; the dog sleeps on, and on, and on.",
    "Pack my box with five dozen jugs of liquor, then send it to 12345 Main Street (67890).",
    "Names like <s>, <pad>, </s>, <unk> and <mask> are words here: x<mask>y <mask><mask> <MASK>.",
    "Größe, naïve café, ﬁne ｗｉｄｅ letters; \"quotes\" & 'more', 100% of [them] = {ok} + @ # $ * ~ ? !",
] * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    train(TEXT, 200, folder)
    return folder


@pytest.fixture(scope="module")
def learnt(folder: Path) -> Vocabulary:
    return Vocabulary(folder)


def test_ids_are_fairseqs(folder: Path, learnt: Vocabulary) -> None:
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    assert (dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk()) == (BOS, PAD, EOS, UNK)
    assert dictionary.symbols == learnt.pieces
    assert len(dictionary) == len(learnt) == 200
    assert dictionary.add_symbol(MASK) == 200, "the task's <mask> gets the id behind the last piece"


def test_ids_are_sentencepieces(folder: Path, learnt: Vocabulary) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    ids = (processor.bos_id(), processor.pad_id(), processor.eos_id(), processor.unk_id())
    assert ids == (BOS, PAD, EOS, UNK)
    assert [processor.id_to_piece(i) for i in range(len(processor))] == learnt.pieces
    assert learnt.encode(TEXT[0]) == processor.encode(TEXT[0])


@pytest.mark.parametrize("name", [*NAMES, "<MASK>", "＜mask＞"])
@pytest.mark.parametrize("context", ["{}", "a {} b", "x{}y", "{0}{0}"])
def test_names_of_specials_in_text_are_text(learnt: Vocabulary, name: str, context: str) -> None:
    text = context.format(name)
    ids = learnt.encode(text)
    assert min(ids) > UNK
    assert max(ids) < len(learnt)
    assert learnt.decode(ids) == text.lower().replace("＜", "<").replace("＞", ">")


def test_a_run_of_unknown_characters_is_one_unk(learnt: Vocabulary) -> None:
    assert learnt.encode("the 日本 dog").count(UNK) == 1


def test_specials_vanish_when_decoded(learnt: Vocabulary) -> None:
    assert learnt.decode([BOS, *learnt.encode("The dog"), EOS, PAD, PAD]) == "the dog"


normalizer = sentencepiece.SentencePieceNormalizer(
    rule_name="nmt_nfkc_cf", add_dummy_prefix=False, remove_extra_whitespaces=True, escape_whitespaces=False
)


@given(st.text() | st.text(alphabet="abc ABC.,<>/s-mk ﬁｗÖé\t\n\r\u2028\u00a0▁"))
def test_decoding_gives_the_normalised_text(learnt: Vocabulary, text: str) -> None:
    ids = learnt.encode(text)
    assume(UNK not in ids)
    assert learnt.decode(ids) == normalizer.normalize(text)


def test_the_same_text_gives_the_same_files_in_another_process(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(TEXT), encoding="utf-8")
    code = (
        "import pathlib, sys; from tupe_fairseq.vocabulary import train; folder = pathlib.Path(sys.argv[1]);"
        "train((folder / 'text').read_text(encoding='utf-8').split('\\n'), 200, folder)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, capture_output=True)
    for name in ("spm.model", "dict.txt"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


# ---- Training --------------------------------------------------------------------------------------

# "hello world" has the letters h e l o w r d and the word mark: 8 pieces, 12 with the specials.
ALPHABET = 12


def test_smallest_size_is_the_alphabet(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"too small.* -v {ALPHABET}$"):
        train(["hello world"], ALPHABET - 1, tmp_path)
    train(["hello world"], ALPHABET, tmp_path)
    assert sorted(Vocabulary(tmp_path).pieces[4:]) == sorted("helowrd▁")


def test_largest_size_is_told_and_works(tmp_path: Path) -> None:
    with pytest.raises(VocabularyTooLarge) as caught:
        train(TEXT, 5000, tmp_path)
    assert str(caught.value).endswith(f"at most -v {caught.value.largest}")
    train(TEXT, caught.value.largest, tmp_path)
    assert len(Vocabulary(tmp_path)) == caught.value.largest
    with pytest.raises(VocabularyTooLarge):
        train(TEXT, caught.value.largest + 1, tmp_path)


@pytest.mark.parametrize("sentences", [[], ["", " ", "\t"]])
def test_no_text_is_refused(tmp_path: Path, sentences: list[str]) -> None:
    with pytest.raises(ValueError, match="no text"):
        train(sentences, 100, tmp_path)


@pytest.mark.parametrize("error", [OSError("disk gone"), KeyboardInterrupt()])
def test_errors_while_reading_come_through(tmp_path: Path, error: BaseException) -> None:
    def sentences() -> Iterator[str]:
        yield from TEXT
        raise error

    with pytest.raises(type(error)) as caught:
        train(sentences(), 100, tmp_path)
    assert caught.value is error
    assert not list(tmp_path.iterdir())


def test_an_interrupt_while_sentencepiece_reads_comes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(words: Counter[str]) -> Iterator[str]:
        yield "word\t2"
        signal.raise_signal(signal.SIGINT)
        yield "more\t1"

    monkeypatch.setattr(vocabulary, "_counted", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(TEXT, 100, tmp_path)
    assert not list(tmp_path.iterdir())


def test_long_lines_are_learnt_from(tmp_path: Path) -> None:
    train([*TEXT, "zebra Ж " * 1000], 200, tmp_path)  # 9,000 bytes; SentencePiece skips what has over 4,192
    assert UNK not in Vocabulary(tmp_path).encode("Ж")


def test_long_words_are_learnt_from_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train([*TEXT, "Ж" * 3000 + "z"], 200, tmp_path)  # 6,001 bytes without a space
    assert UNK not in Vocabulary(tmp_path).encode("Ж")
    monkeypatch.setattr(vocabulary, "LONGEST_WORD", 3)
    assert list(vocabulary._counted(Counter({"abcdefgh": 2}))) == ["abc\t2", "def\t2", "gh\t2"]


def test_counted_words_give_the_pieces_of_the_sentences(tmp_path: Path, shared_data: Path) -> None:
    """Those of SentencePiece, given sentences as they are; none is too long for it or names a special."""
    text = (shared_data / "corpus" / "state_union.txt").read_text(encoding="utf-8").splitlines()
    text = [line for line in text if len(line.encode()) <= 4192]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_prefix=str(tmp_path / "spm"), model_type="bpe", vocab_size=8000,
        normalization_rule_name="nmt_nfkc_cf", character_coverage=vocabulary.CHARACTER_COVERAGE,
        bos_id=BOS, pad_id=PAD, eos_id=EOS, unk_id=UNK, minloglevel=2,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))
    train(text, 8000, tmp_path)
    assert Vocabulary(tmp_path).pieces == [theirs.id_to_piece(i) for i in range(8000)]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_special_becomes_a_piece(tmp_path: Path, name: str) -> None:
    text = [f"x{name}y {name}{name} {name.upper()} word"] * 100
    with pytest.raises(VocabularyTooLarge) as caught:
        train(text, 1000, tmp_path)
    train(text, caught.value.largest, tmp_path)  # all merges that the text gives
    pieces = Vocabulary(tmp_path).pieces
    assert pieces.count(name) == (name in SPECIALS)
    assert UNK not in Vocabulary(tmp_path).encode(text[0])


# ---- Files that are missing, damaged, or of two vocabularies ---------------------------------------


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    for name in ("spm.model", "dict.txt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    return tmp_path


@pytest.mark.parametrize("name", ["spm.model", "dict.txt"])
def test_missing_file(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"^no file .*{name}: .*prepare_corpus"):
        Vocabulary(copy)


@pytest.mark.parametrize("share", [0, 0.5])
def test_damaged_model(copy: Path, share: float) -> None:
    model = (copy / "spm.model").read_bytes()
    (copy / "spm.model").write_bytes(model[: int(share * len(model))])
    with pytest.raises(ValueError, match="no SentencePiece model"):
        Vocabulary(copy)


def test_model_with_other_ids(copy: Path) -> None:
    prefix = str(copy / "spm")  # SentencePiece's own ids: <unk>, <s>, </s>
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_prefix=prefix, model_type="bpe", vocab_size=200, minloglevel=2
    )
    with pytest.raises(ValueError, match="begins with"):
        Vocabulary(copy)


def test_model_with_mask_as_a_piece(copy: Path) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_prefix=str(copy / "spm"), model_type="bpe", vocab_size=100,
        bos_id=BOS, pad_id=PAD, eos_id=EOS, unk_id=UNK, user_defined_symbols=[MASK], minloglevel=2,
    )  # fmt: skip
    with pytest.raises(ValueError, match="has the piece <mask>"):
        Vocabulary(copy)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda lines: [lines[1], lines[0], *lines[2:]],
            r"has '.*' where spm.model beside it has '.*' \(id 4\)",
        ),
        (lambda lines: lines[:-1], "has 195 pieces but spm.model beside it 196"),
        (lambda lines: [*lines, b"more 1"], "has 197 pieces but spm.model beside it 196"),
        (lambda lines: [lines[0], b"", *lines[2:]], "line 2 is ''"),
        (lambda lines: [b"word", *lines[1:]], "line 1 is 'word'"),
        (lambda lines: [b"\xff\xfe 1", *lines[1:]], "where spm.model"),
        (lambda lines: [], "line 1 is ''"),
    ],
)
def test_dictionary_of_another_vocabulary(copy: Path, change, sentence: str) -> None:
    lines = (copy / "dict.txt").read_bytes().splitlines()
    (copy / "dict.txt").write_bytes(b"".join(line + b"\n" for line in change(lines)))
    with pytest.raises(ValueError, match=sentence):
        Vocabulary(copy)


def test_fingerprint_is_of_the_vocabulary(copy: Path, folder: Path, tmp_path: Path) -> None:
    fingerprint = Vocabulary(folder).fingerprint
    assert Vocabulary(copy).fingerprint == fingerprint
    with (copy / "spm.model").open("ab") as file:
        file.write(b"\xf8\x3f\x00")  # a field that SentencePiece does not know: the pieces stay
    assert Vocabulary(copy).pieces == Vocabulary(folder).pieces
    assert Vocabulary(copy).fingerprint != fingerprint
    train(TEXT, 199, tmp_path)
    assert Vocabulary(tmp_path).fingerprint != fingerprint


def test_unknown_share_of_real_text_is_below_the_coverage(shared_data: Path, tmp_path: Path) -> None:
    text = (shared_data / "corpus" / "state_union.txt").read_text(encoding="utf-8")
    train(text.splitlines(), 8000, tmp_path)
    learnt = Vocabulary(tmp_path)
    unknown = sum(learnt.encode(line).count(UNK) for line in text.splitlines())
    assert unknown <= (1 - vocabulary.CHARACTER_COVERAGE) * len(text)
