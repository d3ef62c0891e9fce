"""The fairseq model: sizes, heads, gradients, and what a checkpoint may lack."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from initial import assert_initialised
from tiny_model import VOCAB, checkpoint, small

from tupe_fairseq.config import SIZES, TupeConfig, architectures
from tupe_fairseq.model import TupeModel, load_model
from tupe_fairseq.variants import VARIANTS


def preset(architecture: str, **given: object) -> TupeConfig:
    """The options of an architecture, with those that a user gave on the command line."""
    args = Namespace(**given)
    ARCH_CONFIG_REGISTRY[architecture](args)
    return TupeConfig(**vars(args))


@pytest.mark.parametrize("name, parameters", [("tupe_r_base", 112_424_589), ("tupe_a_base", 112_424_193)])
def test_parameters_are_those_of_the_authors_models(name: str, parameters: int) -> None:
    with torch.device("meta"):
        model = TupeModel(preset(name, max_positions=512), 32_769, padding_idx=1)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_architectures_are_the_tables(variant: str, size: str) -> None:
    name = f"{variant}_{size}"
    assert ARCH_MODEL_REGISTRY[name] is TupeModel
    cfg = preset(name)
    assert cfg.variant == variant
    assert cfg.encoder_ffn_embed_dim == 4 * cfg.encoder_embed_dim
    assert cfg.encoder_embed_dim == 64 * cfg.encoder_attention_heads
    assert name in architectures()


def test_presets_never_beat_the_user() -> None:
    for field in dataclasses.fields(TupeConfig):
        if field.name != "_name":
            assert getattr(preset("tupe_a_tiny", **{field.name: "given"}), field.name) == "given"


def test_defaults_are_those_of_base() -> None:
    assert preset("tupe_r_base") == TupeConfig()


def test_every_parameter_gets_a_gradient_from_one_mlm_step() -> None:
    model = small()
    tokens = torch.randint(4, VOCAB, (3, 12))
    tokens[:, 0] = 0
    tokens[1, 9:] = 1
    masked = torch.zeros_like(tokens, dtype=torch.bool)
    masked[:, [0, 3, 5]] = True
    logits, _ = model(tokens, masked_tokens=masked)
    logits.log_softmax(dim=-1)[:, 4].sum().backward()
    without = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 0}
    assert without == set()


def test_only_masked_positions_are_projected() -> None:
    model = small().eval()
    tokens = torch.randint(4, VOCAB, (2, 8))
    masked = torch.rand(2, 8) < 0.4
    torch.testing.assert_close(model(tokens, masked_tokens=masked)[0], model(tokens)[0][masked])


def test_dropout_is_in_training_only() -> None:
    model = small(dropout=0.5, attention_dropout=0.5)
    tokens = torch.randint(4, VOCAB, (2, 8))
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])


@pytest.mark.parametrize("option", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_reaches_the_encoder_alone(option: str) -> None:
    model = small(**{option: 0.5})
    names = ("dropout", "attention_dropout", "activation_dropout")
    assert {name: getattr(model.encoder.cfg, name) for name in names} == {
        **dict.fromkeys(names, 0.0),
        option: 0.5,
    }
    tokens = torch.randint(4, VOCAB, (2, 8))
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    assert torch.equal(small()(tokens)[0], small()(tokens)[0]), "without dropout nothing is left to chance"


@pytest.mark.parametrize("dropout", [0.25, 0.0])
def test_dropout_of_the_sentence_head(dropout: float) -> None:
    """With all else constant, a hidden unit is tanh(1) / (1 - dropout) or dropped."""
    model = small(pooler_dropout=dropout)
    model.register_classification_head("head", 2)
    head = model.classification_heads["head"]
    torch.nn.init.zeros_(head.dense.weight)
    torch.nn.init.ones_(head.dense.bias)
    head.out_proj = torch.nn.Identity()
    hidden = head(torch.randn(100, 3, 16))
    kept = hidden > 0
    assert abs(kept.double().mean().item() - (1 - dropout)) <= 5 * (dropout * (1 - dropout) / 1600) ** 0.5
    torch.testing.assert_close(hidden[kept], torch.full_like(hidden[kept], math.tanh(1) / (1 - dropout)))
    assert (head.eval()(torch.randn(100, 3, 16)) > 0).all()


def test_initialisation() -> None:
    model = small()
    assert_initialised(model)
    assert (model.encoder.embed_tokens.weight[1] == 0).all(), "padding"
    model.register_classification_head("head", 3)
    assert_initialised(model.classification_heads["head"])


def test_probabilities() -> None:
    logits = torch.tensor([[1.0, 2.0, 5.0], [4.0, 2.0, 2.0]]).log()
    expected = torch.tensor([[1 / 8, 1 / 4, 5 / 8], [1 / 2, 1 / 4, 1 / 4]])
    model = small()
    torch.testing.assert_close(model.get_normalized_probs((logits, None), log_probs=False), expected)
    torch.testing.assert_close(model.get_normalized_probs((logits, None), log_probs=True), expected.log())
    half = model.get_normalized_probs((torch.randn(50, VOCAB).half(), None), log_probs=False)
    torch.testing.assert_close(half.sum(dim=-1), torch.ones(50))


def test_sequences_longer_than_the_model_are_refused_when_it_is_built() -> None:
    task = SimpleNamespace(max_positions=lambda: 13, source_dictionary=Dictionary())
    with pytest.raises(ValueError, match=r"--tokens-per-sample 13 .* --max-positions 12"):
        TupeModel.build_model(dataclasses.asdict(small().cfg), task)


@pytest.mark.parametrize(
    "option, sentence",
    [
        ({"encoder_attention_heads": 3}, "3 attention heads do not divide the width 16"),
        ({"rel_pos_bins": 33}, "even number of at least 4 buckets, not 33"),
        ({"max_rel_pos": 8}, "must exceed the 8 exact distances"),
        ({"max_positions": 0}, "max_positions must be at least 1"),
        ({"pooler_dropout": 2.0}, "--pooler-dropout must be a probability below 1"),
    ],
)
def test_impossible_options_are_refused(option: dict, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        small(**option)
    assert re.search(sentence, str(error.value))


def test_a_checkpoint_may_lack_a_sentence_head_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pretrained, model = small(), small()
    model.register_classification_head("head", 3)
    with pytest.raises(ValueError, match="no model of this task: of its head head it has none of that name"):
        model.load_state_dict(pretrained.state_dict())
    model.checkpoint_heads = "if they fit"
    fresh = model.classification_heads["head"].out_proj.weight.clone()
    model.load_state_dict(pretrained.state_dict())
    assert torch.equal(model.classification_heads["head"].out_proj.weight, fresh)
    assert "sentence head head: fresh weights, as the checkpoint has none of that name" in caplog.text

    state = pretrained.state_dict()
    del state["encoder.layers.1.fc1.weight"]
    with pytest.raises(RuntimeError, match=r"encoder\.layers\.1\.fc1\.weight"):
        model.load_state_dict(state)


def test_a_head_of_another_task(caplog: pytest.LogCaptureFixture) -> None:
    """Taken as a whole or not at all, and the log says which."""
    caplog.set_level(logging.INFO)
    finetuned, same, three, none, other = small(), small(), small(), small(), small()
    other.checkpoint_heads = "unused"
    for model, classes in ((finetuned, 2), (same, 2), (three, 3), (other, 2)):
        torch.manual_seed(classes)
        model.register_classification_head("head", classes)
        torch.nn.init.normal_(model.classification_heads["head"].dense.weight)
    torch.nn.init.normal_(same.classification_heads["head"].dense.weight)
    expected = {key: value.clone() for key, value in three.classification_heads.state_dict().items()}
    with pytest.raises(ValueError, match="no model of this task: of its head head it has other shapes"):
        three.load_state_dict(finetuned.state_dict())
    three.checkpoint_heads = "if they fit"
    for model, message in (
        (other, "sentence head head: fresh weights, as the checkpoint has that of another task"),
        (same, "sentence head head: from the checkpoint"),
        (three, "sentence head head: fresh weights, as the checkpoint has other shapes"),
        (none, "the checkpoint's sentence head head is left out, as this model has none"),
    ):
        caplog.clear()
        model.load_state_dict(finetuned.state_dict())
        assert caplog.messages == [message]
    for key, value in three.classification_heads.state_dict().items():
        assert torch.equal(value, expected[key]), key
    for key, value in same.classification_heads.state_dict().items():
        assert torch.equal(value, finetuned.classification_heads.state_dict()[key]), key
    assert not any("classification_heads" in key for key in none.state_dict())


def test_the_head_reads_the_first_token() -> None:
    model = small().eval()
    model.register_classification_head("head", 2)
    features, _ = model(torch.randint(4, VOCAB, (3, 7)), features_only=True)
    head = model.classification_heads["head"]
    expected = torch.tanh(features[:, 0] @ head.dense.weight.T + head.dense.bias) @ head.out_proj.weight.T
    torch.testing.assert_close(head(features), expected + head.out_proj.bias)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_checkpoint_is_a_model_again(variant: str) -> None:
    model = small(variant=variant, rel_pos_bins=8, max_rel_pos=4, dropout=0.5, pooler_dropout=0.5)
    model.register_classification_head("head", 3)
    model.eval()
    loaded = load_model(checkpoint(model))
    assert not any(module.training for module in loaded.modules())
    assert loaded.cfg == model.cfg
    tokens = torch.randint(4, VOCAB, (2, 12))
    tokens[1, 9:] = 1
    for name in ("head", None):
        expected, _ = model(tokens, classification_head_name=name)
        assert torch.equal(loaded(tokens, classification_head_name=name)[0], expected)


def test_a_checkpoint_whose_weights_do_not_fit_is_refused() -> None:
    missing, shape, left_over = (checkpoint(small()) for _ in range(3))
    del missing["model"]["lm_head.bias"]
    shape["cfg"]["model"]["encoder_ffn_embed_dim"] = 64
    left_over["cfg"]["model"]["encoder_layers"] = 1
    huge = checkpoint(small())
    huge["cfg"]["model"]["max_positions"] = 10**12  # would take all memory, if it were believed
    cases = [(missing, r"lm_head\.bias"), (shape, r"fc1\.weight"), (left_over, "other layers")]
    for state, name in [*cases, (huge, "position_bias.absolute.embedding.weight")]:
        with pytest.raises(ValueError, match=rf"(?s)weights do not fit its options: .*{name}"):
            load_model(state)
    hostile = checkpoint(small())
    hostile["model"]["classification_heads.keys.out_proj.weight"] = torch.zeros(2, 16)
    with pytest.raises(ValueError, match="weights do not fit its options"):
        load_model(hostile)
    with pytest.raises(ValueError, match="holds no options of a model"):
        load_model({"model": small().state_dict()})
    with pytest.raises(ValueError, match="holds no weights of a model"):
        load_model({**checkpoint(small()), "model": {}})
