"""attention.py against the formula, with and without padding."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference
import torch

from tupe_fairseq.attention import IMPLEMENTATIONS, SelfAttention, attention, choose
from tupe_fairseq.positional import PositionBias
from tupe_fairseq.variants import VARIANTS

BATCH, LENGTH, WIDTH, HEADS = 3, 6, 8, 2
PADDING = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [0, 1, 1, 1, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("padding", [None, PADDING], ids=["full", "padded"])
@pytest.mark.parametrize("name", VARIANTS)
def test_layer_is_the_formula(name: str, padding: torch.Tensor | None, impl: str) -> None:
    torch.manual_seed(0)
    scale = 1 / math.sqrt(VARIANTS[name].terms * WIDTH / HEADS)
    layer = SelfAttention(WIDTH, HEADS, scale, dropout=0.0, impl=impl).double()
    positions = PositionBias(VARIANTS[name], WIDTH, HEADS, LENGTH, 32, 128, scale).double()
    for parameter in (*layer.parameters(), *positions.parameters()):
        torch.nn.init.normal_(parameter)
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    actual = layer(x, positions(LENGTH), padding).detach().numpy()
    of_layer, of_positions = (
        {key: value.numpy() for key, value in module.state_dict().items()} for module in (layer, positions)
    )
    for b in range(BATCH):
        padded = None if padding is None else padding[b].tolist()
        expected = reference.attention(name, x[b].numpy(), of_layer, of_positions, HEADS, padded)
        np.testing.assert_allclose(actual[b], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_row_of_padding_alone_stays_finite(dtype: torch.dtype, impl: str) -> None:
    shape = (1, HEADS, LENGTH, WIDTH // HEADS)
    query, key, value = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    bias = torch.randn(HEADS, LENGTH, LENGTH, dtype=dtype, requires_grad=True)
    out = attention(query, key, value, bias, torch.ones(1, LENGTH, dtype=torch.bool), impl=impl)
    out.float().sum().backward()
    for tensor in (out, query.grad, key.grad, value.grad, bias.grad):
        assert tensor.isfinite().all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_dropout_drops_weights_and_keeps_their_mean(impl: str) -> None:
    torch.manual_seed(0)
    length, rate = 64, 0.25
    value = torch.eye(length).view(1, 1, length, length)  # the output is the weights themselves
    zero = torch.zeros(1, 1, length, 1)
    weights = attention(zero, zero, value, torch.zeros(1, length, length), None, rate, impl)
    dropped = (weights == 0).double().mean().item()
    sigma = (rate * (1 - rate) / length**2) ** 0.5
    assert abs(dropped - rate) < 5 * sigma
    kept = weights[weights != 0]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / length / (1 - rate)))


@pytest.mark.parametrize("padding", [None, PADDING[:2]], ids=["full", "padded"])
def test_torchs_kernels_give_the_gradients_of_the_formula(padding: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    arguments = [torch.randn(2, HEADS, LENGTH, 4, dtype=torch.float64) for _ in range(3)]
    arguments.append(torch.randn(HEADS, LENGTH, LENGTH, dtype=torch.float64))
    gradients = []
    for impl in ("reference", "sdpa"):
        inputs = [x.clone().requires_grad_() for x in arguments]
        attention(*inputs, padding, impl=impl).square().sum().backward()
        gradients.append([x.grad for x in inputs])
    for expected, actual in zip(*gradients):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_torchs_kernels_get_one_bias_for_all_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = []

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, *_, **__):
        masks.append(mask)
        return value

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", kernel)
    query = torch.ones(3, HEADS, LENGTH, 4)
    attention(query, query, query, torch.ones(HEADS, LENGTH, LENGTH), PADDING, impl="sdpa")
    assert [mask.shape for mask in masks] == [(1, HEADS, LENGTH, LENGTH)]


def test_the_device_chooses_and_the_user_overrides() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [choose("auto", device) for device in (cpu, gpu)] == ["tiles", "sdpa"]
    assert choose("reference", gpu) == "reference"
    with pytest.raises(ValueError, match="there are auto, reference, tiles, sdpa"):
        choose("flash", cpu)
