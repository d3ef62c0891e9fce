"""Reading checkpoints: good ones, damaged ones, and ones that would run code."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from tiny_model import RunsCode

from tupe_fairseq import checkpoints
from tupe_fairseq.config import TupeConfig

OPTIONS = {
    "_name": "tupe_r_tiny",
    "variant": "tupe_r",
    **dict.fromkeys(checkpoints.SHAPE[1:], 4),
    "dropout": 0.1,
}
STATE = {"model": {"weight": torch.arange(6.0)}, "cfg": {"model": OPTIONS}, "args": None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.pt"


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_what_was_saved_is_loaded(path: Path, zipped: bool) -> None:
    torch.save(STATE, path, _use_new_zipfile_serialization=zipped)
    state = checkpoints.load(path)
    assert torch.equal(state["model"]["weight"], torch.arange(6.0))
    assert checkpoints.model_options(state) == OPTIONS


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_code_is_refused_and_does_not_run(path: Path, zipped: bool) -> None:
    witness = path.with_name("it-ran")
    torch.save({"model": RunsCode(f"touch {witness}")}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"system, and loading that could run code"):
        checkpoints.load(path)
    assert not witness.exists()
    torch.load(path, weights_only=False)
    assert witness.exists(), "the file was harmless, so this test shows nothing"


def test_a_class_is_refused_by_name(path: Path) -> None:
    torch.save({**STATE, "args": argparse.Namespace(arch="roberta")}, path)
    with pytest.raises(ValueError, match=r"it names argparse\.Namespace"):
        checkpoints.load(path)


def test_checkpoints_of_the_authors_code_are_refused_by_name(shared_data: Path) -> None:
    with pytest.raises(ValueError, match=r"it names (argparse\.Namespace|fairseq\.meters)"):
        checkpoints.load(shared_data / "golden" / "official_tupe_r_tiny.pt")


def test_missing(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^no checkpoint .*checkpoint\.pt$"):
        checkpoints.load(path)


def test_empty(path: Path) -> None:
    path.touch()
    with pytest.raises(ValueError, match="is empty"):
        checkpoints.load(path)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.95])
def test_cut_off(path: Path, part: float, zipped: bool) -> None:
    torch.save(STATE, path, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    with pytest.raises(ValueError, match="is no checkpoint, or was cut off") as caught:
        checkpoints.load(path)
    assert "\n" not in str(caught.value)


def test_cut_off_between_two_tensors(path: Path) -> None:
    """Far from the ends of a larger file, where torch has an error of the operating system."""
    torch.save({"model": {str(i): torch.zeros(1000) for i in range(8)}}, path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="is no checkpoint, or was cut off"):
        checkpoints.load(path)


@pytest.mark.parametrize("content", [b"some text\n", b"PK\x03\x04 no zip", bytes(range(256))])
def test_other_files(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is no checkpoint"):
        checkpoints.load(path)


def test_other_values(path: Path) -> None:
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match="it holds one list"):
        checkpoints.load(path)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"model": {}}, "^here.pt holds no options of a model"),
        ({"cfg": None}, "holds no options of a model"),
        ({"cfg": {"model": {"_name": "roberta_base"}}}, "holds a model 'roberta_base', not one of"),
    ],
)
def test_models_of_others(state: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checkpoints.model_options(state, "here.pt")


@pytest.mark.parametrize("value", ["tupe_r\n--adam-betas", "a b", "", "x;y", ["tupe_r"], "--user-dir"])
def test_options_that_are_no_names_are_refused(value: object) -> None:
    """They become words of a command line, in which a line break would add flags."""
    with pytest.raises(ValueError, match="'variant' is neither a name nor a number"):
        checkpoints.model_options({"cfg": {"model": {**OPTIONS, "variant": value}}})
    assert checkpoints.model_options({"cfg": {"model": OPTIONS}}) == OPTIONS


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("_name", None, "holds a model None, 'tupe_r', which is unknown"),
        ("variant", "nosuch", "holds a model 'tupe_r_tiny', 'nosuch', which is unknown"),
        ("encoder_layers", "two", "its model option encoder_layers is 'two'"),
        ("max_positions", None, "its model option max_positions is None"),
        ("encoder_embed_dim", 8.0, "its model option encoder_embed_dim is 8.0"),
        ("dropout", "x", "its model option dropout is 'x'"),
    ],
)
def test_options_of_another_kind_are_refused(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^here.pt .*{message}"):
        checkpoints.model_options({"cfg": {"model": {**OPTIONS, option: value}}}, "here.pt")


OTHERS = {"_name", "resize_positions", "attention_impl", "checkpoint_activations"}


def test_the_options_that_shape_a_model_are_those_of_the_plugin() -> None:
    """All but the dropouts, what a load may do, and how attention and gradients are computed."""
    names = [field.name for field in fields(TupeConfig) if not field.name.endswith("dropout")]
    assert sorted(checkpoints.SHAPE) == sorted(set(names) - OTHERS)


@pytest.mark.parametrize(
    ("weight", "kind"),
    [
        (torch.ones(2, 2, dtype=torch.long), r"a tensor of torch.int64 \(torch.strided\)"),
        (torch.ones(2, 2, dtype=torch.complex64), "a tensor of torch.complex64"),
        (torch.ones(2, 2).to_sparse(), r"a tensor of torch.float32 \(torch.sparse_coo\)"),
        ("text", "a str"),
        (None, "a NoneType"),
    ],
)
def test_weights_that_are_none(weight: object, kind: str) -> None:
    """torch would round or drop parts of some of these in silence."""
    for name in (checkpoints.EMBEDDINGS, "another"):
        weights = {checkpoints.EMBEDDINGS: torch.ones(2, 2), name: weight}
        with pytest.raises(ValueError, match=f"^here.pt: the weight {name} is {kind}"):
            checkpoints.model_weights({"model": weights}, "here.pt")
    with pytest.raises(ValueError, match="is no matrix"):
        checkpoints.model_weights({"model": {checkpoints.EMBEDDINGS: torch.ones(2)}})


def test_a_folder(path: Path) -> None:
    with pytest.raises(ValueError, match="is a folder; name a checkpoint in it"):
        checkpoints.load(path.parent)
