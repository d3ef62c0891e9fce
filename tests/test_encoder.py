"""Laws of the encoder: what must hold whatever the weights are."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from initial import assert_initialised

from tupe_fairseq.attention import SelfAttention
from tupe_fairseq.encoder import EncoderConfig, TupeEncoder, init_weights
from tupe_fairseq.positional import PositionTerms
from tupe_fairseq.variants import VARIANTS

CONFIG = EncoderConfig(
    variant=VARIANTS["tupe_r"],
    vocab_size=40,
    padding_idx=1,
    layers=3,
    embed_dim=16,
    ffn_dim=32,
    num_heads=4,
    max_positions=12,
    num_buckets=32,
    max_distance=128,
    activation_dropout=0.0,
    dropout=0.0,
    attention_dropout=0.0,
)


def random_encoder(variant: str, **changes: object) -> TupeEncoder:
    torch.manual_seed(0)
    encoder = TupeEncoder(dataclasses.replace(CONFIG, variant=VARIANTS[variant], **changes)).double().eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return encoder


@pytest.fixture(params=VARIANTS)
def encoder(request: pytest.FixtureRequest) -> TupeEncoder:
    return random_encoder(request.param)


@pytest.fixture
def tupe_r() -> TupeEncoder:
    return random_encoder("tupe_r")


def sentence(*length: int) -> torch.Tensor:
    return torch.randint(4, CONFIG.vocab_size, length)


TOKENS = [0, 5, 9, 5, 2, CONFIG.padding_idx, CONFIG.padding_idx]
DROPOUT = {"dropout": 0.25, "attention_dropout": 0.25, "activation_dropout": 0.25}
SMALL = {"layers": 2, "embed_dim": 8, "ffn_dim": 12, "num_heads": 2, "vocab_size": 10}


@pytest.mark.parametrize("name", VARIANTS)
def test_features_are_the_formula(name: str) -> None:
    encoder = random_encoder(name, **SMALL)
    p = {key: value.numpy() for key, value in encoder.state_dict().items()}
    expected = reference.encoder(name, TOKENS, p, layers=2, heads=2, pad=CONFIG.padding_idx)
    actual, _ = encoder(torch.tensor([TOKENS]))
    np.testing.assert_allclose(actual[0].detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_the_formulas(name: str) -> None:
    """Central differences of the reference, along a random direction for each parameter."""
    encoder = random_encoder(name, **SMALL)
    p = {key: value.numpy() for key, value in encoder.state_dict().items()}  # shares the memory
    weights = torch.randn(len(TOKENS), 8, dtype=torch.float64)
    (encoder(torch.tensor([TOKENS]))[0][0] * weights).sum().backward()

    def loss_at(key: str, value: np.ndarray) -> float:
        features = reference.encoder(name, TOKENS, {**p, key: value}, 2, 2, CONFIG.padding_idx)
        return (features * weights.numpy()).sum()

    step = 1e-5
    for key, parameter in encoder.named_parameters():
        direction = torch.randn_like(parameter)
        shift = (step * direction / direction.norm()).numpy()
        slope = (loss_at(key, p[key] + shift) - loss_at(key, p[key] - shift)) / (2 * step)
        expected = (parameter.grad * direction).sum() / direction.norm()
        assert abs(slope - expected) < 1e-7 * max(1, abs(expected)), key


def test_padding_never_changes_a_sentence(encoder: TupeEncoder) -> None:
    alone = sentence(1, 7)
    batch = torch.full((2, 12), CONFIG.padding_idx)
    batch[0, :7], batch[1] = alone[0], sentence(12)
    torch.testing.assert_close(encoder(batch)[0][0, :7], encoder(alone)[0][0], rtol=0, atol=1e-12)


def test_sentences_do_not_see_each_other(encoder: TupeEncoder) -> None:
    batch = sentence(3, 9)
    torch.testing.assert_close(encoder(batch)[0][1:2], encoder(batch[1:2])[0], rtol=0, atol=1e-12)


def test_permutation_equivariant_without_bias(tupe_r: TupeEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = tupe_r
    tokens, order = sentence(2, 10), torch.randperm(10)
    with_bias = encoder(tokens[:, order])[0] - encoder(tokens)[0][:, order]
    assert with_bias.abs().max() > 0.01, "with a bias, the order counts"
    monkeypatch.setattr(encoder.position_bias, "forward", lambda length: PositionTerms())
    torch.testing.assert_close(encoder(tokens[:, order])[0], encoder(tokens)[0][:, order], rtol=0, atol=1e-12)


def test_every_layer_receives_the_same_terms(encoder: TupeEncoder) -> None:
    received = []
    for layer in encoder.layers:
        layer.self_attn.register_forward_hook(lambda module, args, out: received.append(args[1]))
    encoder(sentence(2, 8))
    assert len(received) == CONFIG.layers
    assert all(terms is received[0] for terms in received)
    for actual, expected in zip(received[0], encoder.position_bias(8)):
        assert (actual is None and expected is None) or torch.equal(actual, expected)


def test_the_bias_reaches_the_softmax(tupe_r: TupeEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias that forbids all keys but one makes every query see that key's value."""
    bias = torch.full((CONFIG.num_heads, 8, 8), -1e9, dtype=torch.float64)
    bias[:, :, 3] = 0
    encoder = tupe_r
    monkeypatch.setattr(encoder.position_bias, "forward", lambda length: PositionTerms(bias))
    seen = {}

    def keep(module: SelfAttention, args: tuple, out: torch.Tensor) -> None:
        x = args[0]
        value = module.in_proj(x)[..., 2 * CONFIG.embed_dim :]
        seen["expected"] = module.out_proj(value[:, 3:4].expand_as(x))
        seen["actual"] = out

    encoder.layers[0].self_attn.register_forward_hook(keep)
    encoder(sentence(2, 8))
    torch.testing.assert_close(seen["actual"], seen["expected"], rtol=0, atol=1e-12)


def test_hidden_states_are_returned_when_asked(encoder: TupeEncoder) -> None:
    tokens = sentence(2, 5)
    features, none = encoder(tokens)
    again, hiddens = encoder(tokens, return_all_hiddens=True)
    assert none == []
    assert len(hiddens) == CONFIG.layers + 1
    assert torch.equal(features, again)
    assert torch.equal(hiddens[-1], features)


def test_rows_of_padding_alone_stay_finite(encoder: TupeEncoder) -> None:
    tokens = torch.full((2, 6), CONFIG.padding_idx)
    tokens[0] = sentence(6)
    features, _ = encoder(tokens)
    features.sum().backward()
    assert features.isfinite().all()
    assert all(p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"num_heads": 3}, "3 attention heads do not divide the width 16; .*--encoder-attention-heads"),
        ({"num_buckets": 31}, "even number of at least 4 buckets, not 31; change --rel-pos-bins"),
        ({"num_buckets": 2}, "even number of at least 4 buckets"),
        ({"max_distance": 8}, "8, must exceed the 8 exact distances .*--max-rel-pos"),
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"dropout": 1.0}, "dropout must be a probability below 1"),
        ({"attention_impl": "flash"}, "no implementation flash of attention"),
    ],
)
def test_impossible_numbers_are_refused(change: dict, sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        dataclasses.replace(CONFIG, **change)
    assert re.search(sentence, str(error.value))


def test_too_long_a_sentence_is_refused(encoder: TupeEncoder) -> None:
    with pytest.raises(ValueError, match=r"13 tokens .* 12 positions"):
        encoder(sentence(1, 13))


def test_initialisation() -> None:
    torch.manual_seed(0)
    encoder = TupeEncoder(dataclasses.replace(CONFIG, vocab_size=5000, embed_dim=64)).apply(init_weights)
    assert_initialised(encoder)
    assert (encoder.embed_tokens.weight[CONFIG.padding_idx] == 0).all()


# Of each dropout: its option, what it takes and gives, by arguments x and results y of modules around it.
DROPOUTS = {
    "embeddings": ("dropout", lambda x, y: (y["embed_layer_norm"], x["layers.0"])),
    "attention output": (
        "dropout",
        lambda x, y: (y["layers.1.self_attn"], x["layers.1.self_attn_layer_norm"] - x["layers.1"]),
    ),
    "feed-forward output": (
        "dropout",
        lambda x, y: (y["layers.1.fc2"], x["layers.1.final_layer_norm"] - x["layers.1.fc1"]),
    ),
    "activation": ("activation_dropout", lambda x, y: (F.gelu(y["layers.1.fc1"]), x["layers.1.fc2"])),
}


@pytest.mark.parametrize("option", ["dropout", "activation_dropout", "attention_dropout"])
@pytest.mark.parametrize("place", DROPOUTS)
def test_each_dropout_is_that_of_its_own_option(place: str, option: str) -> None:
    torch.manual_seed(0)
    encoder = TupeEncoder(dataclasses.replace(CONFIG, **{option: 0.25})).double().apply(init_weights)
    x, y = {}, {}
    for name, module in encoder.named_modules():

        def keep(module: torch.nn.Module, args: tuple, out: torch.Tensor, name: str = name) -> None:
            x[name], y[name] = args[0], out

        module.register_forward_hook(keep)
    encoder(sentence(8, 12))
    own_option, ends = DROPOUTS[place]
    before, after = ends(x, y)
    if option != own_option:
        torch.testing.assert_close(after, before)
        return
    kept = after.abs() > 1e-12
    share = kept.double().mean().item()
    assert abs(share - 0.75) < 5 * (0.25 * 0.75 / kept.numel()) ** 0.5
    torch.testing.assert_close(after[kept], before[kept] / 0.75)


@pytest.mark.parametrize("dropout", [0.25, 0.0])
def test_dropout_of_attention_weights(dropout: float) -> None:
    """Tokens that are unit vectors, and equal logits: the output is the weights, 1/16 each."""
    torch.manual_seed(0)
    cfg = dataclasses.replace(CONFIG, num_heads=1, attention_dropout=dropout)
    module = TupeEncoder(cfg).layers[1].self_attn
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.eye_(module.in_proj.weight[32:])
    torch.nn.init.eye_(module.out_proj.weight)
    weights = module(torch.eye(16).expand(10, 16, 16), PositionTerms(torch.zeros(1, 16, 16)))
    kept = weights > 0
    assert abs(kept.double().mean().item() - (1 - dropout)) <= 5 * (dropout * (1 - dropout) / 2560) ** 0.5
    torch.testing.assert_close(weights[kept], torch.full_like(weights[kept], 1 / 16 / (1 - dropout)))


@pytest.mark.parametrize("impl", ["reference", "tiles"])
@pytest.mark.parametrize("name", ["bert_a_d", "tupe_r"])
def test_activations_that_are_computed_once_more_change_no_number(name: str, impl: str) -> None:
    """Every layer runs a second time, with the dropout masks of the first; in evaluation, none does."""
    found, calls = [], []
    for again in (False, True):
        encoder = random_encoder(name, attention_impl=impl, checkpoint_activations=again, **DROPOUT)
        encoder.layers[1].register_forward_pre_hook(lambda *_: calls.append(None))
        tokens = torch.tensor([TOKENS] * 3)
        encoder(tokens)
        torch.manual_seed(5)
        encoder.train()
        features, _ = encoder(tokens)
        features.pow(3).sum().backward()
        found.append([features.detach(), *(p.grad for p in encoder.parameters() if p.grad is not None)])
        assert len(calls) == (2 if not again else 2 + 3)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
