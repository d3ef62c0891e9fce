"""What only a GPU can show: the kernels in half precision, and training with them. Skipped without one."""

from __future__ import annotations

import pytest
import torch

from tupe_fairseq.attention import attention
from tupe_fairseq.config import TupeConfig
from tupe_fairseq.model import TupeModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use"),
]
HEADS, WIDTH = 4, 64


@pytest.mark.parametrize("length", [64, 127, 512])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)],  # 2 to 3 units of the last place
    ids=str,
)
def test_torchs_kernels_give_the_formula(
    dtype: torch.dtype, tolerance: float, padded: bool, length: int
) -> None:
    torch.manual_seed(0)
    arguments = [torch.randn(3, HEADS, length, WIDTH, dtype=torch.float64) for _ in range(3)]
    arguments[0] *= WIDTH**-0.5
    arguments.append(torch.randn(HEADS, length, length, dtype=torch.float64))
    padding = torch.zeros(3, length, dtype=torch.bool)
    padding[1, length // 2 :] = padded
    results = []
    for impl, kind in (("reference", torch.float64), ("sdpa", dtype)):
        inputs = [x.to(dtype).to("cuda", kind).requires_grad_() for x in arguments]
        out = attention(*inputs, padding.cuda() if padded else None, impl=impl)
        (out * torch.linspace(-1, 1, WIDTH, device="cuda").to(kind)).sum().backward()
        results.append([out.detach(), *(x.grad for x in inputs)])
    for expected, actual in zip(*results):
        error = (actual.double() - expected).abs().max() / expected.abs().max()
        assert error < tolerance


def test_dropout_of_torchs_kernels_has_its_probability() -> None:
    length, rate = 256, 0.1
    zero = torch.zeros(1, 1, length, 8, device="cuda")
    eye = torch.eye(length, device="cuda")[None, None]
    weights = torch.cat(
        [attention(zero, zero, part, None, None, 0.0) for part in eye.split(64, dim=3)], dim=3
    )
    torch.testing.assert_close(weights, torch.full_like(weights, 1 / length))
    torch.manual_seed(0)
    bias = torch.zeros(1, length, length, device="cuda")
    dropped = (attention(zero, zero, eye[..., :64], bias, None, rate) == 0).double().mean().item()
    assert abs(dropped - rate) < 5 * (rate * (1 - rate) / (64 * length)) ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_two_hundred_updates_have_a_finite_loss_that_falls(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    size = {"encoder_layers": 2, "encoder_embed_dim": 128, "encoder_ffn_embed_dim": 512}
    cfg = TupeConfig(variant="tupe_r", encoder_attention_heads=2, max_positions=64, **size)
    model = TupeModel(cfg, vocab_size=200, padding_idx=1).to("cuda", dtype).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(5, 200, (16, 64), device="cuda")
    tokens[3, 40:] = 1
    losses = []
    for _ in range(200):
        logits = model(tokens)[0].float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert torch.tensor(losses).isfinite().all()
    assert losses[-1] < losses[0] / 2
