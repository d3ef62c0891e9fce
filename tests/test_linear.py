"""linear.py: both libraries give the same products and gradients."""

from __future__ import annotations

import pytest
import torch

from tupe_fairseq import linear
from tupe_fairseq.linear import Linear, amd_family, as_convolution, product


@pytest.fixture(params=[True, False], ids=["oneDNN", "MKL"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for choice in ("ONEDNN_FOR_LAYERS", "ONEDNN_FOR_MANY"):
        monkeypatch.setattr(linear, choice, request.param)


@pytest.mark.parametrize("shape", [(5, 24), (2, 3, 24), (1, 1, 24), (0, 24), (2, 0, 24)], ids=str)
@pytest.mark.usefixtures("library")
def test_a_layer_is_the_product_in_float64(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, x = Linear(24, 17), torch.randn(shape, requires_grad=True)
    out = layer(x)
    grad = torch.randn(out.shape)
    out.backward(grad)
    rows, g = x.detach().double().view(-1, 24), grad.double().view(-1, 17)
    weight, bias = (p.detach().double() for p in (layer.weight, layer.bias))
    torch.testing.assert_close(out.double(), (rows @ weight.T + bias).view(out.shape), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.grad.double(), (g @ weight).view(shape), rtol=0, atol=1e-5)
    torch.testing.assert_close(layer.weight.grad.double(), g.T @ rows, rtol=0, atol=1e-5)
    torch.testing.assert_close(layer.bias.grad.double(), g.sum(0), rtol=0, atol=1e-5)
    assert layer.weight.grad.is_contiguous()


@pytest.mark.usefixtures("library")
def test_rows_that_are_a_view() -> None:
    x = torch.randn(6, 4, 10).transpose(0, 1)
    layer = Linear(10, 3)
    torch.testing.assert_close(layer(x), layer(x.contiguous()))


def test_only_single_precision_goes_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(linear, "ONEDNN_FOR_LAYERS", True)
    monkeypatch.setattr(linear, "as_convolution", lambda *args: calls.append(args) or as_convolution(*args))
    layer = Linear(8, 8)
    layer(torch.ones(2, 8))
    assert len(calls) == 1
    layer.double()(torch.ones(2, 8, dtype=torch.float64))
    layer.bfloat16()(torch.ones(2, 8, dtype=torch.bfloat16))
    with torch.backends.mkldnn.flags(enabled=False):
        layer.float()(torch.ones(2, 8))
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("machine", "capability", "vendor", "family"),
    [
        ("x86_64", "AVX512", "AuthenticAMD", 26),
        ("x86_64", "AVX512", "GenuineIntel", 0),
        ("x86_64", "AVX2", "AuthenticAMD", 0),
        ("aarch64", "DEFAULT", "", 0),
    ],
)
def test_which_processors(
    machine: str, capability: str, vendor: str, family: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = (
        f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 26\nmodel\t\t: 2\n\n"
        if vendor
        else "BogoMIPS: 1\n"
    )
    monkeypatch.setattr(linear.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(linear.Path, "is_file", lambda path: True)
    monkeypatch.setattr(linear.Path, "read_text", lambda path: cpu * 2)
    assert amd_family() == family


@pytest.mark.parametrize("shape", [(3, 5, 7, 4), (1, 16, 33, 64), (2, 1, 1, 1)], ids=str)
@pytest.mark.usefixtures("library")
def test_products_are_those_in_float64(shape: tuple[int, ...]) -> None:
    m, i, k, j = shape
    torch.manual_seed(0)
    a, b = torch.randn(m, k, i).transpose(1, 2), torch.randn(m, k, j)  # a is not contiguous
    torch.testing.assert_close(product(a, b).double(), a.double() @ b.double(), rtol=0, atol=1e-5)
