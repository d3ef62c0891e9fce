"""positional.py against the formulas, and the laws of the [CLS] reset."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch
from torch import nn

from tupe_fairseq.positional import PositionBias, relative_position_bucket, reset_cls, resize_positions
from tupe_fairseq.variants import VARIANTS, Variant

HEADS, WIDTH, POSITIONS = 2, 8, 150  # enough positions to reach the last bucket
# those whose positions are one bias, the same for every sentence
WITH_BIAS = [name for name, variant in VARIANTS.items() if variant.relative or variant.terms == 2]


def random_bias(name: str) -> PositionBias:
    torch.manual_seed(0)
    variant = VARIANTS[name]
    scale = 1 / math.sqrt(variant.terms * WIDTH / HEADS)
    module = PositionBias(variant, WIDTH, HEADS, POSITIONS, 32, 128, scale).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def parameters(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in module.state_dict().items()}


def test_models_with_a_bias() -> None:
    assert WITH_BIAS == ["bert_r", "tupe_a", "tupe_r", "tupe_a_tie_cls", "tupe_r_tie_cls"]


@pytest.mark.parametrize("name", WITH_BIAS)
@pytest.mark.parametrize("length", [1, 2, 7, POSITIONS])
def test_bias_is_the_formula(name: str, length: int) -> None:
    module = random_bias(name)
    terms = module(length)
    expected = reference.position_logits(name, length, parameters(module), HEADS, WIDTH)
    np.testing.assert_allclose(terms.bias.detach().numpy(), expected, rtol=0, atol=1e-12)
    assert terms.query is None and terms.key is None


def test_bert_adds_positions_at_the_input_alone() -> None:
    module = random_bias("bert_a")
    assert module(7) == (None, None, None)
    assert list(module.parameters()) == []


def test_cross_terms_are_queries_and_keys_of_positions() -> None:
    module = random_bias("bert_a_d")
    terms = module(7)
    assert terms.bias is None
    s = reference.Positions(parameters(module), HEADS, WIDTH // HEADS)
    for h in range(HEADS):
        expected = [[s.u_q(h, i) for i in range(7)], [s.u_k(h, i) for i in range(7)]]
        for actual, rows in zip((terms.query, terms.key), expected):
            np.testing.assert_allclose(actual[h].detach().numpy(), rows, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_for_thetas_exist_with_a_reset_only(name: str) -> None:
    module, variant = random_bias(name), VARIANTS[name]
    if variant.untied:
        assert len(module.absolute.embedding.weight) == POSITIONS + variant.reset
    if variant.relative:
        assert len(module.relative.embedding.weight) == 32 + variant.reset


@pytest.mark.parametrize(
    "row, sentence",
    [
        ({"cross_terms": True}, "needs untied=True"),
        ({"reset": True}, "reset is of a term without words"),
        ({"reset": True, "untied": True, "cross_terms": True}, "mixes it with words"),
    ],
)
def test_rows_that_no_model_can_have(row: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Variant("", **row)


@pytest.mark.parametrize("buckets, furthest", [(32, 128), (16, 64), (4, 8), (64, 1000)])
def test_buckets_are_the_formula(buckets: int, furthest: int) -> None:
    distances = range(-2 * furthest, 2 * furthest + 1)
    expected = [reference.bucket(distance, buckets, furthest) for distance in distances]
    assert relative_position_bucket(torch.tensor(distances), buckets, furthest).tolist() == expected


def test_buckets_by_hand() -> None:
    # 32 buckets, distance 128: exact below 8, then log(16) / 8 an octave, the last from 91 on
    distances = [0, -1, -7, -8, -16, -128, -500, 1, 7, 8, 16, 128, 500]
    expected = [0, 1, 7, 8, 10, 15, 15, 17, 23, 24, 26, 31, 31]
    assert relative_position_bucket(torch.tensor(distances), 32, 128).tolist() == expected


def test_reset_by_hand() -> None:
    logits = torch.arange(9.0).view(1, 3, 3)
    expected = [[100, 100, 100], [200, 4, 5], [200, 7, 8]]
    reset = reset_cls(logits, torch.tensor([100.0]), torch.tensor([200.0]))
    assert reset.tolist() == [expected]
    assert logits.tolist() == torch.arange(9.0).view(1, 3, 3).tolist(), "the input is left alone"


def test_theta1_gets_no_gradient_through_a_softmax() -> None:
    module = random_bias("tupe_r")
    torch.manual_seed(1)
    out = module(5).bias.softmax(dim=-1) * torch.randn(HEADS, 5, 5)
    out.sum().backward()
    absolute, relative = module.absolute.embedding.weight.grad, module.relative.embedding.weight.grad
    assert absolute[0].abs().max() < 1e-14, "row 0 makes theta1, a constant of the first row"
    assert relative[16].abs().max() < 1e-14, "so does the relative row of the [CLS] row"
    assert absolute[1:6].abs().min() > 0
    assert absolute[6:].abs().max() == 0, "no gradient beyond the length"
    assert relative[32].abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
def test_resizing_by_hand(dtype: torch.dtype) -> None:
    """Rows of positions are stretched from end to end; those of the thetas, -1 and -2, stay as they are."""
    positions, thetas = [[0, 5], [10, 5], [20, 5]], [[-1, 1], [-2, 1]]
    cases = [
        (3, [[0, 5], [10, 5], [20, 5]]),
        (5, [[0, 5], [5, 5], [10, 5], [15, 5], [20, 5]]),
        (4, [[0, 5], [20 / 3, 5], [40 / 3, 5], [20, 5]]),
        (2, [[0, 5], [10, 5]]),
        (1, [[0, 5]]),
    ]
    for size, expected in cases:
        resized = resize_positions(torch.tensor(positions, dtype=dtype), size, reset=False)
        torch.testing.assert_close(resized, torch.tensor(expected, dtype=dtype))
        # with a reset, position 0 is [CLS] and has no row: one position more
        resized = resize_positions(torch.tensor(thetas + positions, dtype=dtype), size + 1, reset=True)
        torch.testing.assert_close(resized, torch.tensor(thetas + expected, dtype=dtype))


def test_what_cannot_be_resized() -> None:
    only_thetas = torch.zeros(2, 4)  # of a model with one position
    assert resize_positions(only_thetas, 1, reset=True).shape == (2, 4)
    with pytest.raises(ValueError, match="no rows that could be stretched"):
        resize_positions(only_thetas, 2, reset=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_too_long(name: str) -> None:
    with pytest.raises(ValueError, match=r"151 tokens .* 150 positions"):
        random_bias(name)(POSITIONS + 1)
