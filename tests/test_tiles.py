"""tiles.py against the reference: outputs, every gradient, the same dropout masks, however it is cut."""

from __future__ import annotations

import itertools

import pytest
import torch

from tupe_fairseq import attention, tiles

Arguments = tuple[torch.Tensor, ...]


def run(impl: str, arguments: Arguments, padding: torch.Tensor | None, rate: float) -> list[torch.Tensor]:
    """The output, and the gradients of query, key, value and (where it is given) bias."""
    inputs = [x.detach().requires_grad_() for x in arguments]
    torch.manual_seed(7)  # of the dropout masks
    bias = inputs[3] if inputs[3:] else None
    out = attention.attention(*inputs[:3], bias, padding, rate, impl)
    torch.manual_seed(8)
    out.backward(torch.randn(out.shape, dtype=torch.float64).to(out.dtype))
    return [out.detach(), *(x.grad for x in inputs)]


def draw(batch: int, heads: int, length: int, width: int, dtype: torch.dtype, bias: bool = True) -> Arguments:
    torch.manual_seed(0)
    shapes = [(batch, heads, length, width)] * 3 + [(heads, length, length)] * bias
    return tuple(torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)


PADDING = torch.tensor([[0] * 13, [0] * 9 + [1] * 4, [1] * 13], dtype=torch.bool)


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("padding", [None, PADDING], ids=["full", "padded"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
# One row of a head; three rows; a head; two; a sentence of four heads; two sentences; all of it.
@pytest.mark.parametrize("elements", [13, 40, 170, 340, 700, 1400, 10**6])
def test_equals_the_reference(
    elements: int, bias: bool, padding: torch.Tensor | None, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "TILE_BYTES", 8 * elements)
    arguments = draw(3, 4, 13, 5, torch.float64, bias)
    for actual, expected in zip(
        run("tiles", arguments, padding, rate), run("reference", arguments, padding, rate)
    ):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float16, 0.01)],  # a few units of the last place
    ids=str,
)
def test_other_precisions(dtype: torch.dtype, tolerance: float) -> None:
    padding = torch.zeros(2, 65, dtype=torch.bool)
    padding[1, 50:] = True
    low, high = (draw(2, 3, 65, 8, kind) for kind in (dtype, torch.float64))
    actual, expected = run("tiles", low, padding, 0.1), run("reference", high, padding, 0.1)
    for a, e in zip(actual, expected):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), e, rtol=0, atol=tolerance * e.abs().max().item())


def test_gradients_are_those_of_the_output() -> None:
    arguments = tuple(x.requires_grad_() for x in draw(2, 2, 5, 3, torch.float64))
    padding = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]], dtype=torch.bool)

    def out(*inputs: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)  # the same masks for every difference
        return attention.attention(*inputs, padding, 0.4, "tiles")

    assert torch.autograd.gradcheck(out, arguments)


@pytest.mark.parametrize(("batch", "heads", "length"), [(1, 1, 1), (3, 5, 7), (2, 12, 16), (4, 2, 33)])
@pytest.mark.parametrize("elements", [1, 7, 50, 300, 5000])
def test_tiles_cover_the_weights_once_in_the_order_of_memory(
    batch: int, heads: int, length: int, elements: int
) -> None:
    order = []
    for tile in tiles.tiles(batch, heads, length, elements):
        parts = [range(part.start, part.stop) for part in tile]
        size = len(parts[0]) * len(parts[1]) * len(parts[2]) * length
        assert size <= max(elements, length)
        order += list(itertools.product(*parts))
    assert order == list(itertools.product(range(batch), range(heads), range(length)))


def test_nothing_that_grows_with_the_square_of_the_length_is_kept_for_the_backward_pass() -> None:
    query, key, value, bias = (x.requires_grad_() for x in draw(2, 2, 32, 4, torch.float32))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        attention.attention(query, key, value, bias, None, 0.1, "tiles")
    squares = [x for x in kept if x.numel() >= 32 * 32]
    assert [x.data_ptr() for x in squares] == [bias.data_ptr()]
