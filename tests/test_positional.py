"""positional.py against the formulas, and the laws of the [CLS] reset."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from torch import nn

from tupe_fairseq.positional import PositionBias, relative_position_bucket, reset_cls

HEADS, WIDTH, POSITIONS = 2, 8, 150  # enough positions to reach the last bucket


def random_bias(relative: bool) -> PositionBias:
    torch.manual_seed(0)
    module = PositionBias(WIDTH, HEADS, POSITIONS, relative, 32, 128).double()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def arrays(module: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    return module.weight.detach().numpy(), module.bias.detach().numpy()


@pytest.mark.parametrize("relative", [False, True], ids=["tupe_a", "tupe_r"])
@pytest.mark.parametrize("length", [1, 2, 7, POSITIONS])
def test_bias_is_the_formula(relative: bool, length: int) -> None:
    module = random_bias(relative)
    absolute = module.absolute
    expected = reference.position_bias(
        length,
        absolute.embedding.weight.detach().numpy(),
        arrays(absolute.layer_norm),
        arrays(absolute.query),
        arrays(absolute.key),
        HEADS,
        module.relative.embedding.weight.detach().numpy() if relative else None,
    )
    np.testing.assert_allclose(module(length).detach().numpy(), expected, rtol=0, atol=1e-12)


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
    module = random_bias(relative=True)
    torch.manual_seed(1)
    out = module(5).softmax(dim=-1) * torch.randn(HEADS, 5, 5)
    out.sum().backward()
    absolute, relative = module.absolute.embedding.weight.grad, module.relative.embedding.weight.grad
    assert absolute[0].abs().max() < 1e-14, "row 0 makes theta1, a constant of the first row"
    assert relative[16].abs().max() < 1e-14, "so does the relative row of the [CLS] row"
    assert absolute[1:6].abs().min() > 0
    assert absolute[6:].abs().max() == 0, "no gradient beyond the length"
    assert relative[32].abs().min() > 0


def test_too_long() -> None:
    with pytest.raises(ValueError, match=r"151 tokens .* 150 positions"):
        random_bias(relative=False)(POSITIONS + 1)
