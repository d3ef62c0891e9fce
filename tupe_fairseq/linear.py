"""Linear layers and products of matrices, by the faster of two libraries that torch brings.

On an x86 CPU torch multiplies float32 matrices with MKL, which uses AVX-512 on Intel's processors alone. It
gives convolutions to oneDNN, which uses it on all. A linear layer is a convolution with a kernel of one;
products of many matrices are a grouped convolution. With torch 2.13 on two cores of AMD's processors:

    GFLOP/s, MKL and oneDNN          Zen 4 (family 25)       Zen 5 (family 26)
    a layer of base size, forward    126-187 and 197-209     225 and 500
    forward and backward             137-196 and 161-202     220 and 420
    many products, small results     106-140 and 100-112     200 and 340

So layers go to oneDNN on both, and many products on Zen 5; elsewhere all is torch's own.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def amd_family() -> int:
    """The family of this CPU if it is one of AMD's with AVX-512, else 0."""
    cpu = Path("/proc/cpuinfo")
    if (
        platform.machine() != "x86_64"
        or torch.backends.cpu.get_cpu_capability() != "AVX512"
        or not cpu.is_file()
    ):
        return 0
    found = re.search(r"^vendor_id\s*: AuthenticAMD$.*?^cpu family\s*: (\d+)$", cpu.read_text(), re.M | re.S)
    return int(found[1]) if found else 0


ONEDNN_FOR_LAYERS = amd_family() >= 25
ONEDNN_FOR_MANY = amd_family() >= 26


class Linear(nn.Linear):
    """``nn.Linear``; ``torch.backends.mkldnn.set_flags(False)`` turns the other way off."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns (..., N) for x (..., K)."""
        if ONEDNN_FOR_LAYERS and for_onednn(x):
            return as_convolution(x, self.weight, self.bias)
        return super().forward(x)


def for_onednn(x: Tensor) -> bool:
    """Whether oneDNN can be asked for products of x."""
    takes = x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() > 0
    return takes and bool(torch.backends.mkldnn.enabled)


def as_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight' + bias: (..., K) with (N, K) and (N,) to (..., N)."""
    image = x.reshape(1, 1, -1, x.size(-1)).permute(0, 3, 1, 2)  # (1, K, 1, rows), channels last: no copy
    y = F.conv2d(image, weight[:, :, None, None], bias)  # (1, N, 1, rows)
    return y.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """A B of every pair: (m, i, k) with (m, k, j), best both contiguous, to (m, i, j); without gradients."""
    if not (ONEDNN_FOR_MANY and for_onednn(a)):
        return torch.bmm(a, b)
    m, i, k = a.shape
    return F.conv1d(b.reshape(1, m * k, -1), a.reshape(m * i, k, 1), groups=m).view(m, i, -1)
