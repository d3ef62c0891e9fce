"""What the weights of a fresh model are."""

from __future__ import annotations

from torch import nn


def assert_initialised(module: nn.Module) -> None:
    """BERT's initialisation: N(0, 0.02) for matrices and tables, 0 for biases; LayerNorm begins as none."""
    for name, parameter in module.named_parameters():
        if "layer_norm" in name:
            assert (parameter == (1 if name.endswith("weight") else 0)).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            spread = parameter.std().item()
            assert abs(spread - 0.02) < 5 * 0.02 / (2 * parameter.numel()) ** 0.5, name
