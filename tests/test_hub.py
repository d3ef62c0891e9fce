"""A trained model in use: texts in; tokens, features, predictions and guesses out."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiny_pretrained
import torch
from hypothesis import given
from hypothesis import strategies as st

from tupe_fairseq import fill_mask
from tupe_fairseq.hub import TupeHubInterface
from tupe_fairseq.model import TupeModel
from tupe_fairseq.vocabulary import BOS, EOS, MASK, PAD, Vocabulary

HEAD = "sentence_classification_head"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "run"
    tiny_pretrained.make(folder, outputs=3)
    return folder


@pytest.fixture(scope="module")
def tupe(folder: Path) -> TupeHubInterface:
    return TupeModel.from_pretrained(folder)


def test_a_sentence_and_a_pair_are_encoded_as_for_training(folder: Path, tupe: TupeHubInterface) -> None:
    words = Vocabulary(folder)
    a, b = words.encode("the import"), words.encode("a module")
    assert tupe.encode("the import").tolist() == [BOS, *a, EOS]
    assert tupe.encode("the import", "a module").tolist() == [BOS, *a, EOS, EOS, *b, EOS]
    assert tupe.encode("").tolist() == [BOS, EOS]


def test_several_sentences_are_padded(tupe: TupeHubInterface) -> None:
    long, short = tupe.encode("the import statement"), tupe.encode("a")
    both = tupe.encode(["the import statement", "a"])
    assert torch.equal(both[0], long)
    assert both[1].tolist() == [*short.tolist(), *[PAD] * (len(long) - len(short))]
    with pytest.raises(ValueError, match="encode pairs one by one"):
        tupe.encode(["a", "b"], "c")


def test_decoding_gives_the_lower_cased_text_back(tupe: TupeHubInterface) -> None:
    assert tupe.decode(tupe.encode("The Import  statement")) == "the import statement"
    assert tupe.decode(tupe.encode(["the import", "a"])[1]) == "a"
    assert tupe.decode(tupe.encode("the import", "a module")) == ["the import", "a module"]
    assert tupe.decode(tupe.encode(f"the {MASK} module")) == f"the {MASK} module"


def test_a_mask_is_one_token_and_keeps_the_words_around_it(tupe: TupeHubInterface) -> None:
    mask = tupe.mask_idx
    alone = tupe.encode("the import module")[1:-1].tolist()
    assert tupe.encode(f"{MASK} the import module").tolist() == [BOS, mask, *alone, EOS]
    assert tupe.encode(f"the import module {MASK}").tolist() == [BOS, *alone, mask, EOS]
    joined = tupe.encode(f"{MASK}ing")[2:-1].tolist()
    assert joined == [tupe.vocabulary.pieces.index("ing")]  # no space, so no mark of a word


@given(st.text(), st.text())
def test_any_text_beside_a_mask(tupe: TupeHubInterface, before: str, behind: str) -> None:
    tokens = tupe.encode(f"{before} {MASK} {behind}".replace(MASK, " ", before.count(MASK)))
    first = tokens.tolist().index(tupe.mask_idx)
    assert tokens[1:first].tolist() == tupe.vocabulary.encode(before.replace(MASK, " "))


def test_features_are_the_encoder_s(folder: Path, tupe: TupeHubInterface) -> None:
    tokens = tupe.encode(["the import statement", "a"])
    features = tupe.extract_features(tokens)
    assert features.shape == (2, tokens.size(1), 16)
    torch.testing.assert_close(features, tupe.model.encoder(tokens)[0])
    torch.testing.assert_close(
        features[1, :3], tupe.extract_features(tokens[1, :3])[0]
    )  # padding is not seen
    layers = tupe.extract_features(tokens, return_all_hiddens=True)
    assert len(layers) == 1 + 2  # the embeddings and two layers
    torch.testing.assert_close(layers[-1], features)


def test_predictions_are_log_probabilities(tupe: TupeHubInterface) -> None:
    tokens = tupe.encode("the import statement")
    logits = tupe.predict(HEAD, tokens, return_logits=True)
    assert logits.shape == (1, 3)
    torch.testing.assert_close(tupe.predict(HEAD, tokens), logits.log_softmax(dim=-1))
    with pytest.raises(KeyError, match=f"no sentence head none; there are {HEAD}"):
        tupe.predict("none", tokens)


def test_a_new_head_is_there_and_a_regression_gives_its_number(folder: Path) -> None:
    tupe = TupeModel.from_pretrained(folder / "checkpoint_best.pt")
    tupe.register_classification_head("score", 1)
    tokens = tupe.encode("a")
    torch.testing.assert_close(
        tupe.predict("score", tokens), tupe.predict("score", tokens, return_logits=True)
    )


def test_guesses_are_the_model_s_likeliest_pieces(tupe: TupeHubInterface) -> None:
    text = f"the {MASK} statement"
    guesses = tupe.fill_mask(text, topk=4)
    tokens = tupe.encode(text)
    logits = tupe.model(tokens[None])[0][0, tokens.tolist().index(tupe.mask_idx)]
    best = logits.softmax(dim=-1)[: tupe.mask_idx].topk(4)
    assert [guess.probability for guess in guesses] == pytest.approx(best.values.tolist(), rel=1e-5)
    pieces = [tupe.vocabulary.pieces[i].replace("▁", " ") for i in best.indices.tolist()]
    assert [guess.token for guess in guesses] == pieces
    assert [guess.text for guess in guesses] == [f"the{piece} statement" for piece in pieces]
    several = tupe.fill_mask([text, f"a {MASK}"], topk=4)
    assert [guess.token for guess in several[0]] == pieces
    assert len(several[1]) == 4


@pytest.mark.parametrize(
    ("text", "topk", "says"),
    [
        ("none", 5, "'none' has 0 times <mask>"),
        (f"{MASK} {MASK}", 5, "has 2 times <mask>"),
        (MASK, 0, "topk 0 does not lie between 1 and the 300 pieces"),
        (f"{'a ' * 50}{MASK}", 5, "40"),
    ],
)
def test_what_cannot_be_filled_is_refused(tupe: TupeHubInterface, text: str, topk: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tupe.fill_mask(text, topk)


def test_a_folder_without_a_vocabulary_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model.pt").symlink_to(folder / "checkpoint_best.pt")
    with pytest.raises(FileNotFoundError, match=r"spm\.model, and text needs"):
        TupeModel.from_pretrained(tmp_path, "model.pt")
    assert TupeModel.from_pretrained(tmp_path, "model.pt", data_name_or_path=folder)


def test_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "dict.txt").read_text(encoding="utf-8").splitlines()
    for name in ("spm.model", "checkpoint_best.pt"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "dict.txt").write_text("\n".join([lines[1], lines[0], *lines[2:]]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"dict\.txt"):
        TupeModel.from_pretrained(tmp_path)


def test_the_shell_prints_what_fill_mask_gives(
    folder: Path, tupe: TupeHubInterface, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"the {MASK} statement"
    monkeypatch.setattr(sys, "argv", ["fill_mask", str(folder), text, "--topk", "2", "--cpu"])
    fill_mask.main()
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == text
    for line, guess in zip(lines, tupe.fill_mask(text, topk=2)):
        assert line.split() == [f"{guess.probability:.1%}", *guess.token.split(), *guess.text.split()]
    monkeypatch.setattr(sys, "argv", ["fill_mask", str(folder / "none"), text])
    with pytest.raises(SystemExit, match=r"fill_mask: no checkpoint .*none"):
        fill_mask.main()
