"""Reading checkpoints of the authors' code: what is refused, and that nothing of a file runs.

The weights themselves are compared with the authors' in test_convert.py.
"""

from __future__ import annotations

import argparse
import collections
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_official
import torch
from test_checkpoints import RunsCode
from tiny_official import EMBEDDINGS, TIED

from tupe_fairseq import official_weights
from tupe_fairseq.official import parameters

ENCODER = "decoder.sentence_encoder."
LAYER = f"{ENCODER}layers.1."
TABLE = parameters(layers=2, relative=True, heads=["topic"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "official.pt"


def read(path: Path, state: object, zipped: bool = True) -> official_weights.Official:
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    return official_weights.read(path)


def refusal(path: Path, state: object) -> str:
    """The sentence with which a checkpoint is refused."""
    with pytest.raises(ValueError) as caught:
        read(path, state)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))
    return str(caught.value)


def changed(name: str, weight: object) -> dict[str, Any]:
    state = tiny_official.state()
    state["model"][name] = weight
    if name == EMBEDDINGS:
        state["model"][TIED] = weight
    return state


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("relative", [True, False])
def test_sizes_and_options(path: Path, relative: bool, zipped: bool) -> None:
    model = read(path, tiny_official.state(relative), zipped)
    assert model.options == {
        "variant": "tupe_r" if relative else "tupe_a",
        "encoder_layers": 2,
        "encoder_embed_dim": 8,
        "encoder_ffn_embed_dim": 6,
        "encoder_attention_heads": 2,
        "max_positions": 5,
        "rel_pos_bins": 32,
        "max_rel_pos": 128,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation_dropout": 0.0,
        "pooler_dropout": 0.0,
    }
    assert (model.vocabulary, model.heads, model.stored) == (12, {"topic": 3}, "float32")
    assert model.left_out == ["'extra_state'"]


@pytest.mark.parametrize("relative", [True, False])
def test_the_variant_is_read_from_the_weights(path: Path, relative: bool) -> None:
    state = tiny_official.state(relative)
    expected = "tupe_r" if relative else "tupe_a"
    assert read(path, state).options["variant"] == expected
    state["args"].rel_pos = relative
    assert read(path, state).options["variant"] == expected


@pytest.mark.parametrize("relative", [True, False])
def test_an_option_that_contradicts_the_weights(path: Path, relative: bool) -> None:
    state = tiny_official.state(relative)
    for value in (not relative, "yes", None):
        state["args"].rel_pos = value
        message = refusal(path, state)
        assert f"its option rel_pos is {value!r} but {ENCODER}relative_attention_bias.weight is " in message
        assert message.endswith("there" if relative else "missing")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32(path: Path, kind: torch.dtype) -> None:
    state = tiny_official.state()
    state["model"] = {name: weight.to(kind) for name, weight in state["model"].items()}
    model = read(path, state)
    assert model.stored == str(kind)[6:]
    for name, weight in state["model"].items():
        if name != TIED:
            assert torch.equal(model.weights[TABLE[name][0]], weight.float()), name


def test_nan_is_a_number(path: Path) -> None:
    state = tiny_official.state()
    state["model"][EMBEDDINGS][0, 0] = math.nan  # of the tied matrix, too
    assert read(path, state).weights["encoder.embed_tokens.weight"].isnan().sum() == 1


def test_nothing_is_shared_with_the_file(path: Path) -> None:
    state = tiny_official.state()
    row = torch.zeros(1000)[:8]
    state["model"][f"{ENCODER}pos_ln.bias"] = torch.nn.Parameter(row)
    weight = read(path, state).weights["encoder.position_bias.absolute.layer_norm.bias"]
    assert type(weight) is torch.Tensor
    assert not weight.requires_grad
    assert weight.untyped_storage().nbytes() == 4 * 8


# Nothing runs


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("place", ["model", "args", "extra_state", "a weight", "an option"])
def test_code_is_refused_and_does_not_run(path: Path, place: str, zipped: bool) -> None:
    witness, state = path.with_name("it-ran"), tiny_official.state()
    code = RunsCode(f"touch {witness}")
    if place == "a weight":
        state["model"][TIED] = code
    elif place == "an option":
        state["args"].dropout = code
    else:
        state[place] = code
    with pytest.raises(ValueError, match=r"system, and loading that could run code"):
        read(path, state, zipped)
    assert not witness.exists()
    torch.load(path, weights_only=False)
    assert witness.exists(), "the file was harmless, so this test shows nothing"


def test_other_classes_are_refused_by_name(path: Path) -> None:
    state = {**tiny_official.state(), "extra_state": collections.deque([1])}
    assert "it names collections.deque" in refusal(path, state)


def test_what_is_allowed_is_allowed_here_alone(path: Path) -> None:
    read(path, tiny_official.state())
    assert not set(official_weights.CLASSES) & set(torch.serialization.get_safe_globals())


# Other files


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "it holds no model"),
        ({"model": [torch.ones(1)]}, "it holds no model"),
        ({"model": {7: torch.ones(1)}}, "it holds no model"),
        ({"model": {}}, "it is no TUPE of the authors' code: decoder.sentence_encoder.pos.weight is missing"),
        (
            {"model": {"encoder.position_bias.absolute.embedding.weight": torch.ones(2, 2)}},
            "it is a checkpoint of this plugin",
        ),
        (
            {"model": {"encoder.sentence_encoder.embed_positions.weight": torch.ones(2, 2)}},
            "it is a RoBERTa or BERT of fairseq",
        ),
        (
            {"model": {"decoder.sentence_encoder.embed_positions.weight": torch.ones(2, 2)}},
            "it is a RoBERTa or BERT of fairseq",
        ),
        ({"args": None}, "it holds no options ('args')"),
        ({"args": {"dropout": 0.1}}, "it holds no options ('args')"),
    ],
)
def test_other_models(path: Path, change: dict, message: str) -> None:
    assert f"official.pt was not converted: {message}" in refusal(path, tiny_official.state() | change)


# Options


HOSTILE = ["0.1", "a\nb" * 999, -1, 10**400, -(10**30), math.inf, None, [1], torch.tensor(1.0), {"a": 1}]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: f"{type(value).__name__}")
@pytest.mark.parametrize("name", tiny_official.OPTIONS)
def test_options_that_no_model_has(path: Path, name: str, value: object) -> None:
    state = tiny_official.state()
    setattr(state["args"], name, value)
    assert f"its option {name} is " in refusal(path, state)
    delattr(state["args"], name)
    assert f"its option {name} is None" in refusal(path, state)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("encoder_normalize_before", True, "is True, and our model has False alone"),
        ("embedding_normalize", False, "is False, and our model has True alone"),
        ("embedding_normalize", 1, "is 1, and our model has True alone"),
        ("activation_fn", "relu", "is 'relu', and our model has 'gelu' alone"),
        ("activation_fn", "gelu_fast", "is 'gelu_fast', and our model has 'gelu' alone"),
        ("pooler_activation_fn", "relu", "is 'relu', and our model has 'tanh' alone"),
        ("dropout", 1, "is 1, not a probability below 1"),
        ("pooler_dropout", math.nan, "is nan, not a probability below 1"),
        ("attention_dropout", True, "is True, not a probability below 1"),
        ("encoder_attention_heads", 3, "is 3, no divisor of the width 8"),
        ("encoder_attention_heads", 16, "is 16, no divisor of the width 8"),
        ("encoder_attention_heads", 0, "is 0, no divisor of the width 8"),
        ("encoder_attention_heads", True, "is True, no divisor of the width 8"),
        ("encoder_attention_heads", 2.0, "is 2.0, no divisor of the width 8"),
    ],
)
def test_options_that_our_model_cannot_have(path: Path, name: str, value: object, message: str) -> None:
    state = tiny_official.state()
    setattr(state["args"], name, value)
    assert f"its option {name} {message}" in refusal(path, state)


def test_the_relative_table_must_have_the_heads_of_the_options(path: Path) -> None:
    state = tiny_official.state()
    state["args"].encoder_attention_heads = 4
    assert "its relative table has 2 heads, its option encoder_attention_heads says 4" in refusal(path, state)
    state = tiny_official.state(relative=False)
    state["args"].encoder_attention_heads = 4
    assert read(path, state).options["encoder_attention_heads"] == 4


@pytest.mark.parametrize(
    "option, wrong, right",
    [
        ("encoder_layers", 3, 2),
        ("max_positions", 99, 5),
        ("encoder_embed_dim", 16, 8),
        ("encoder_ffn_embed_dim", 7, 6),
    ],
)
def test_sizes_of_the_options_must_be_those_of_the_weights(
    path: Path, option: str, wrong: int, right: int
) -> None:
    """A layer that was lost would go unseen, for example."""
    state = tiny_official.state()
    setattr(state["args"], option, right)
    assert read(path, state).options[option] == right
    setattr(state["args"], option, wrong)
    assert f"its option {option} is {wrong}, its weights have {right}" in refusal(path, state)


def test_a_model_without_layers(path: Path) -> None:
    state = tiny_official.state()
    state["model"] = {name: weight for name, weight in state["model"].items() if ".layers." not in name}
    assert refusal(path, state).endswith("it holds no layers")


# Names


@pytest.mark.parametrize("name", [name for name in TABLE if "fc1.weight" not in name])
def test_a_missing_parameter_is_named(path: Path, name: str) -> None:
    state = tiny_official.state()
    del state["model"][name]
    if name == f"{ENCODER}relative_attention_bias.weight":
        assert read(path, state).options["variant"] == "tupe_a"
    elif name == f"{ENCODER}pos.weight":
        assert f"{name} is missing" in refusal(path, state)
    elif name == "classification_heads.topic.dense.weight":
        assert "has the parameter(s) 'classification_heads.topic.dense.bias'" in refusal(path, state)
    else:
        assert refusal(path, state).endswith(f"it lacks the parameter(s) {name!r}")


@pytest.mark.parametrize(
    "name",
    [
        f"{ENCODER}layers.3.fc1.weight",  # there is no layer 2
        f"{ENCODER}layers.01.fc1.weight",
        f"{ENCODER}layers.-1.fc1.weight",
        f"{ENCODER}version",
        "encoder.embed_tokens.weight",
        "classification_heads.a.b.dense.weight",
        "classification_heads.keys.dense.weight",  # a method of the ModuleDict that would hold it
        "classification_heads..dense.weight",
        "classification_heads.\u00e9.dense.weight",
        "a\nb",
        "",
    ],
)
def test_an_unknown_parameter_is_named(path: Path, name: str) -> None:
    message = f"no TUPE of the authors' code has the parameter(s) {name!r}"
    assert refusal(path, changed(name, torch.ones(6, 8))).endswith(message)


def test_many_unknown_parameters(path: Path) -> None:
    state = tiny_official.state()
    state["model"] |= {f"x{i}": torch.ones(1) for i in range(5)}
    assert refusal(path, state).endswith("'x0', 'x1', 'x2' and 2 more")


# Weights


def test_the_head_must_be_tied(path: Path) -> None:
    state = tiny_official.state()
    state["model"][TIED] = state["model"][EMBEDDINGS].clone()
    read(path, state)
    state["model"][TIED][3, 3] += 1e-6
    assert f"{TIED} is not {EMBEDDINGS} once more" in refusal(path, state)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(6, 8), 0.1, 0, torch.qint8)


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(8)] * 6)


ODD: list[Callable[[], object]] = [
    lambda: torch.ones(6, 8, dtype=torch.int64),
    lambda: torch.ones(6, 8, dtype=torch.float64),
    lambda: torch.ones(6, 8, dtype=torch.complex64),
    lambda: torch.ones(6, 8, dtype=torch.bool),
    lambda: torch.ones(6, 8).to_sparse(),
    lambda: torch.ones(6, 8).to_sparse_csr(),
    lambda: torch.ones(6, 8, device="meta"),
    lambda: torch.ones(8, 6).t(),
    lambda: torch.ones(1).expand(6, 8),
    lambda: torch.ones(1).expand(10**9, 10**6),
    lambda: torch._neg_view(torch.ones(6, 8)),
    lambda: torch.ones(0, 8),
    quantized,
    nested,
    lambda: "ones",
    lambda: 7,
    lambda: None,
    lambda: [[1.0] * 8] * 6,
    lambda: argparse.Namespace(shape=(6, 8)),
]


@pytest.mark.filterwarnings("ignore:.*")  # torch's, of odd tensors
@pytest.mark.parametrize("make", ODD)
@pytest.mark.parametrize("name", [f"{LAYER}fc1.weight", EMBEDDINGS, TIED])
def test_odd_weights(path: Path, name: str, make: Callable[[], object]) -> None:
    message = refusal(path, changed(name, make()))
    assert "not an ordinary tensor of floating-point numbers" in message or "is no checkpoint" in message


class OwnTensor(torch.Tensor):
    """Would be written again as what it is."""


def test_weights_of_a_class_of_their_own(path: Path) -> None:
    state = changed(f"{LAYER}fc1.weight", torch.ones(6, 8).as_subclass(OwnTensor))
    with torch.serialization.safe_globals([OwnTensor]):
        assert "not an ordinary tensor" in refusal(path, state)


@pytest.mark.parametrize("name", TABLE)
def test_every_shape_counts(path: Path, name: str) -> None:
    weight = tiny_official.state()["model"][name]
    for other in (weight[None], weight.reshape(-1)[0], torch.cat([weight, weight])):
        if other.dim() == weight.dim() and name in (f"{ENCODER}pos.weight", EMBEDDINGS):
            continue  # more positions; and of the embeddings the head is as large
        message = refusal(path, changed(name, other))
        assert "has the shape" in message
    if weight.dim() == 2 and name not in (EMBEDDINGS, f"{ENCODER}relative_attention_bias.weight"):
        assert f"{name} has the shape" in refusal(path, changed(name, torch.cat([weight, weight], dim=1)))


def test_the_relative_table_has_33_rows(path: Path) -> None:
    name = f"{ENCODER}relative_attention_bias.weight"
    message = refusal(path, changed(name, torch.ones(32, 2)))
    assert message.endswith(f"{name} has the shape [32, 2] where the others ask for [33, 2]")


def test_a_table_without_positions(path: Path) -> None:
    assert "has 1 row, which leaves no position" in refusal(
        path, changed(f"{ENCODER}pos.weight", torch.ones(1, 8))
    )
