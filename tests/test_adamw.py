"""The fused updates against the formula of fairseq's Adam, as loops over single numbers in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as real

from tupe_fairseq import adamw
from tupe_fairseq.adamw import FusedAdamW

OPTIONS = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-3, "weight_decay": 0.1}  # an eps that can be seen
SHAPES = [(), (1,), (33,), (5, 7), (2, 3, 4)]


def by_hand(
    start: Tensor, grads: list[Tensor], lr: float, betas: Any, eps: float, weight_decay: float
) -> Tensor:
    """The parameter after an update with each of its gradients."""
    values = []
    for i, p in enumerate(start.double().flatten().tolist()):
        m = v = 0.0
        for k, grad in enumerate(grads, start=1):
            g = grad.double().flatten()[i].item()
            p *= 1 - lr * weight_decay
            m = betas[0] * m + (1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g * g
            p -= lr * (1 - betas[1] ** k) ** 0.5 / (1 - betas[0] ** k) * m / (v**0.5 + eps)
        values.append(p)
    return torch.tensor(values, dtype=torch.float64).reshape(start.shape)


def parameters(dtype: torch.dtype, shapes: list[tuple[int, ...]] = SHAPES) -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    np.testing.assert_allclose(actual.detach().double(), expected.double(), atol=tolerance, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)], ids=str)
def test_updates_are_the_formula(dtype: torch.dtype, tolerance: float) -> None:
    """With factors of both kinds, a parameter without decay, and one that had no gradient for a while."""
    params = parameters(dtype)
    start = [p.detach().clone() for p in params]
    optimizer = FusedAdamW(params, spared=[params[2]], **OPTIONS)
    used: list[list[Tensor]] = [[] for _ in params]
    for update in range(12):
        optimizer.zero_grad()
        for i, p in enumerate(params):
            if i != 3 or update in (0, 4, 9):
                grad = torch.randn(p.shape, dtype=dtype)
                p.grad = grad.clone()
                used[i].append(grad * 0.125)
        optimizer.factor *= 0.5
        optimizer.factor = optimizer.factor * torch.tensor(0.25, dtype=dtype)
        optimizer.step()
    for i, p in enumerate(params):
        options = OPTIONS | ({"weight_decay": 0.0} if i == 2 else {})
        close(p, by_hand(start[i], used[i], **options), tolerance)
    assert [optimizer.state[p]["step"] for p in params] == [12, 12, 12, 3, 12]


@pytest.mark.parametrize("lr", [1e-4, 2e-5, 1e-5])
def test_small_decays_are_right_in_the_mean(lr: float) -> None:
    """Each is some roundings of a float32; with 1 - lr * weight_decay as such they would be 1.5 to 7% off."""
    p = nn.Parameter(torch.rand(100_000, generator=torch.Generator().manual_seed(0)) + 0.5)
    start, p.grad = p.detach().double(), torch.zeros_like(p)
    FusedAdamW([p], **OPTIONS | {"lr": lr, "weight_decay": 0.01}).step()
    assert ((start - p.detach()) / start).mean().item() == pytest.approx(
        lr * 0.01, rel=0.04 if lr < 1e-4 else 1e-3
    )


def test_a_factor_serves_one_step() -> None:
    """Until it is made, or the gradients are cleared; a second step has the gradients of the first."""
    (p,) = parameters(torch.float32, [(3,)])
    start, grad = p.detach().clone(), torch.tensor([1.0, 2.0, -1.0])
    optimizer = FusedAdamW([p], **OPTIONS)
    optimizer.factor = 0.0
    optimizer.zero_grad()
    p.grad = grad.clone()
    optimizer.factor *= 2.0
    optimizer.step()
    optimizer.step()
    close(p, by_hand(start, [2 * grad, 2 * grad], **OPTIONS), 1e-6)


def test_a_factor_of_zero_is_none_but_of_gradients() -> None:
    (p,) = parameters(torch.float32, [(3,)])
    expected = by_hand(p.detach(), [torch.zeros(3)], **OPTIONS)
    p.grad = torch.ones(3)
    optimizer = FusedAdamW([p], **OPTIONS)
    optimizer.factor = 0.0
    optimizer.step()
    close(p, expected, 1e-7)


def test_memory_may_lie_in_any_order() -> None:
    """The kernel walks along memory: of a transposed gradient it would take the wrong numbers."""
    straight, turned = (nn.Parameter(torch.arange(12.0).reshape(3, 4) / 8) for _ in range(2))
    strided = nn.Parameter((torch.arange(24.0).reshape(3, 8) / 8)[:, ::2])
    start, grad = strided.detach().clone(), torch.randn(4, 3).t()
    turned.data = turned.data.t().contiguous().t()
    for p in (straight, turned, strided):
        p.grad = grad
    FusedAdamW([straight, turned, strided], **OPTIONS).step()
    close(straight, by_hand(torch.arange(12.0).reshape(3, 4) / 8, [grad], **OPTIONS), 1e-6)
    assert torch.equal(straight, turned)
    close(strided, by_hand(start, [grad], **OPTIONS), 1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_updated_in_float32(dtype: torch.dtype) -> None:
    params = parameters(dtype, [(9,), (2, 5)])
    start = [p.detach().clone() for p in params]
    grads = [torch.randn(p.shape).to(dtype) for p in params]
    optimizer = FusedAdamW(params, **OPTIONS)
    for p, grad in zip(params, grads):
        p.grad = grad.clone()
    optimizer.factor = 0.5
    optimizer.step()
    for p, before, grad in zip(params, start, grads):
        expected = by_hand(before, [0.5 * grad], **OPTIONS)
        close(p, expected, float(expected.abs().max()) * torch.finfo(dtype).eps / 2 + 1e-6)  # rounded once
        assert optimizer.state[p]["exp_avg"].dtype == torch.float32
        close(optimizer.state[p]["exp_avg"], 0.05 * grad.double(), 1e-7)
    optimizer.load_state_dict(optimizer.state_dict())  # torch rounds them to the precision of the parameters
    optimizer.step()
    assert all(optimizer.state[p]["exp_avg"].dtype == torch.float32 for p in params)


def test_a_closure_is_run_with_gradients() -> None:
    (p,) = parameters(torch.float32, [(3,)])
    expected = by_hand(p.detach(), [2 * p.detach()], **OPTIONS)

    def closure() -> Tensor:
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert FusedAdamW([p], **OPTIONS).step(closure) > 0
    close(p, expected, 1e-6)


def test_sparse_gradients_are_refused() -> None:
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="takes no sparse gradients"):
        FusedAdamW([table.weight], **OPTIONS).step()


@pytest.mark.parametrize("betas", [0.9, (0.9,), (0.9, 1.0), (-0.1, 0.9), ("a", "b")])
def test_impossible_betas_are_refused(betas: Any) -> None:
    with pytest.raises(ValueError, match="--adam-betas must be two numbers"):
        FusedAdamW(parameters(torch.float32), **OPTIONS | {"betas": betas})


def missing(*args: Any, **options: Any) -> None:
    raise NotImplementedError("Could not run 'aten::_fused_adamw_'")


def older(*args: Any, **options: Any) -> None:
    raise TypeError("adamw() got an unexpected keyword argument 'fused'")


def blind(*args: Any, grad_scale: Tensor, **options: Any) -> None:
    real(*args, grad_scale=None, **options)


@pytest.mark.parametrize("kernel", [missing, older, blind])
def test_where_there_is_no_kernel_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    """One that does not exist, one of an older torch, and one that ignores the factor."""
    monkeypatch.setattr(adamw, "adamw", kernel)
    with pytest.raises(
        ValueError, match="no fused AdamW for the device cpu; give --optimizer adam"
    ) as caught:
        FusedAdamW(parameters(torch.float32), **OPTIONS)
    assert "\n" not in str(caught.value)
