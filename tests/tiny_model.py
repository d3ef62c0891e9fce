"""A model small enough for every test to build its own, a checkpoint of it, and a hostile one."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch

from tupe_fairseq.config import TupeConfig
from tupe_fairseq.model import TupeModel

VOCAB = 30
CONFIG = TupeConfig(
    encoder_layers=2,
    encoder_embed_dim=16,
    encoder_ffn_embed_dim=32,
    encoder_attention_heads=2,
    max_positions=12,
    dropout=0.0,
    attention_dropout=0.0,
)


def small(**options: object) -> TupeModel:
    """A model without dropout, unless the options ask for it; of the same weights every time."""
    torch.manual_seed(0)
    return TupeModel(dataclasses.replace(CONFIG, **options), VOCAB, padding_idx=1)


def checkpoint(model: TupeModel) -> dict[str, Any]:
    """What ``checkpoints.load`` would give of the model, with an option that only fairseq knows."""
    options = {**dataclasses.asdict(model.cfg), "_name": f"{model.cfg.variant}_small", "of_fairseq": 1}
    return {"cfg": {"model": options}, "model": model.state_dict()}


class RunsCode:
    """Pickles as a call of a shell."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)
