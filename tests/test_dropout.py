"""dropout.py: the distribution is dropout's, and a seed determines the mask, however it is cut."""

from __future__ import annotations

import math

import pytest
import torch

from tupe_fairseq.dropout import Dropout, KeepMasks, dropout

SIGMAS = 5  # a correct generator fails in one of two million seeds


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 1e-4, 0.9])
def test_the_share_of_dropped_elements_is_the_probability(rate: float) -> None:
    torch.manual_seed(0)
    n = 4_000_000
    dropped = (KeepMasks(rate).fill(torch.empty(1000, n // 1000)) == 0).sum().item()
    assert abs(dropped - n * rate) < SIGMAS * math.sqrt(n * rate * (1 - rate))


def test_the_threshold_is_exact_in_the_mean() -> None:
    # 0.1 of 2^16 is 6,553.6: six streams in ten have 6,554, the others 6,553.
    thresholds = [KeepMasks(0.1, seed).threshold for seed in range(2000)]
    assert set(thresholds) == {6553, 6554}
    assert abs(sum(thresholds) / 2000 - 6553.6) < SIGMAS * math.sqrt(0.24 / 2000)
    assert {KeepMasks(0.25, seed).threshold for seed in range(100)} == {2**14}


@pytest.mark.parametrize("apart", [1, 2, 3, 4, 512])
def test_elements_are_dropped_independently(apart: int) -> None:
    torch.manual_seed(0)
    rate, n = 0.5, 1_000_000
    mask = KeepMasks(rate).fill(torch.empty(1, n))[0].double() - (1 - rate)
    correlation = (mask[:-apart] * mask[apart:]).mean().item() / (rate * (1 - rate))
    assert abs(correlation) < SIGMAS / math.sqrt(n)


@pytest.mark.parametrize("length", [1, 3, 4, 7, 64])
def test_the_mask_is_the_same_at_once_and_in_pieces(length: int) -> None:
    whole = KeepMasks(0.3, seed=5).fill(torch.empty(6, length))
    masks = KeepMasks(0.3, seed=5)
    pieces = [masks.fill(torch.empty(rows, length, dtype=torch.int8)) for rows in (1, 3, 2)]
    assert torch.equal(torch.cat(pieces).float(), whole)
    other = KeepMasks(0.3, seed=6).fill(torch.empty(6, length))
    assert length < 4 or not torch.equal(whole, other)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_what_is_kept_is_scaled_up_and_the_gradient_likewise(dtype: torch.dtype) -> None:
    x = torch.arange(1.0, 10_001.0, dtype=dtype).view(10, 1000).requires_grad_()
    torch.manual_seed(3)
    y = dropout(x, 0.2)
    y.backward(torch.ones_like(y))
    kept = y != 0
    assert 0.7 < kept.double().mean() < 0.9
    torch.testing.assert_close(y[kept], (x / 0.8)[kept])
    torch.testing.assert_close(x.grad, kept.to(dtype) / 0.8)


def test_torch_seeds_it() -> None:
    x, layer = torch.ones(4, 33), Dropout(0.5)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second = layer(x), layer(x)
    torch.set_rng_state(state)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)


def test_nothing_is_dropped_in_evaluation_or_with_probability_zero() -> None:
    x = torch.ones(4, 33)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    state = torch.get_rng_state()
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_tensor_without_elements() -> None:
    assert dropout(torch.ones(0, 8), 0.5).shape == (0, 8)
    assert dropout(torch.ones(3, 0), 0.5).shape == (3, 0)
