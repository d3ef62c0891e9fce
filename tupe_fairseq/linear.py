"""Linear layers and products of matrices, by the faster of two libraries that torch brings.

On an x86 CPU torch multiplies float32 matrices with MKL, which uses AVX-512 on Intel's processors alone. It
gives convolutions to oneDNN, which uses it on all. A linear layer is a convolution with a kernel of one, and
as such runs twice as fast on an AMD processor with AVX-512: 500 GFLOP/s in place of 225 forward, 420 in place
of 220 backward (2 cores of a Zen 5 EPYC, torch 2.13). Elsewhere it is torch's own. Products of many matrices
are a grouped convolution: 340 GFLOP/s in place of 200, where the result is small beside the operands.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def onednn_is_faster() -> bool:
    """Whether this CPU has AVX-512 and is not Intel's."""
    cpu = Path("/proc/cpuinfo")
    return (
        platform.machine() == "x86_64"
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and cpu.is_file()
        and "GenuineIntel" not in cpu.read_text()
    )


ONEDNN_IS_FASTER = onednn_is_faster()


class Linear(nn.Linear):
    """``nn.Linear``; ``torch.backends.mkldnn.set_flags(False)`` turns the other way off."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns (..., N) for x (..., K)."""
        if for_onednn(x):
            return as_convolution(x, self.weight, self.bias)
        return super().forward(x)


def for_onednn(x: Tensor) -> bool:
    """Whether products of x go to oneDNN."""
    takes = x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0
    return takes and ONEDNN_IS_FASTER and bool(torch.backends.mkldnn.enabled)


def as_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight' + bias: (..., K) with (N, K) and (N,) to (..., N)."""
    image = x.reshape(1, 1, -1, x.size(-1)).permute(0, 3, 1, 2)  # (1, K, 1, rows), channels last: no copy
    y = F.conv2d(image, weight[:, :, None, None], bias)  # (1, N, 1, rows)
    return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """A B of every pair: (m, i, k) with (m, k, j), best both contiguous, to (m, i, j); without gradients."""
    if not for_onednn(a):
        return torch.bmm(a, b)
    m, i, k = a.shape
    return F.conv1d(b.reshape(1, m * k, -1), a.reshape(m * i, k, 1), groups=m).view(m, i, -1)
