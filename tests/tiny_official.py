"""A checkpoint as the authors' code writes it, of a model small enough for every test to make its own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from tupe_fairseq.official import EMBEDDINGS, TIED, parameters

SIZES = {"V": 12, "D": 8, "3D": 24, "F": 6, "P": 6, "33": 33, "H": 2, "C.topic": 3}
OPTIONS = {
    "encoder_attention_heads": 2,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.0,
    "pooler_dropout": 0.0,
    "activation_fn": "gelu",
    "pooler_activation_fn": "tanh",
    "embedding_normalize": True,
    "encoder_normalize_before": False,
}


def state(relative: bool = True) -> dict[str, Any]:
    """Two layers and a sentence head ``topic`` of three outputs."""
    torch.manual_seed(0)
    table = parameters(layers=2, relative=relative, heads=["topic"])
    model = {name: torch.randn([SIZES[word] for word in words.split()]) for name, (_, words) in table.items()}
    model[TIED] = model[EMBEDDINGS]
    return {"args": argparse.Namespace(**OPTIONS), "model": model, "extra_state": {}}


def dictionary(path: Path, lines: int = SIZES["V"] - 8) -> Path:
    """Writes a dictionary that fits: seven special symbols, its lines, the mask; returns its path."""
    path.write_text("".join(f"w{i} {9 - i}\n" for i in range(lines)))
    return path
