"""Reads checkpoints of the authors' code, a fairseq of 2020, as weights and options of our model."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import checkpoints
from .official import BUCKETS, EMBEDDINGS, POSITIONS, RELATIVE_POSITIONS, TIED, parameters


class Meter:
    """Stands in for the meters of their log in a checkpoint: takes the numbers and does nothing."""


METERS = ("AverageMeter", "TimeMeter", "StopwatchMeter")
CLASSES: Sequence[type | tuple[type, str]] = (
    argparse.Namespace,
    *((Meter, f"fairseq.meters.{name}") for name in METERS),
)

# What their flags could change and our model cannot.
FIXED = {
    "activation_fn": "gelu",
    "pooler_activation_fn": "tanh",
    "embedding_normalize": True,
    "encoder_normalize_before": False,
}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Official:
    """One of their models, as ours."""

    options: dict[str, Any]  # of TupeConfig
    weights: dict[str, Tensor]  # by our name, float32
    vocabulary: int  # V
    heads: dict[str, int]  # C of each sentence head
    stored: str  # type of the numbers in the file
    left_out: list[str]  # what else the file has


def read(path: str | Path) -> Official:
    """Reads a checkpoint without running anything that it holds.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is damaged, no checkpoint of the authors' code, or of a model that ours cannot be.
    """
    state = checkpoints.load(path, CLASSES)
    try:
        return _understood(state)
    except ValueError as error:
        raise ValueError(f"{path} was not converted: {error}") from None


def _understood(state: dict[str, Any]) -> Official:
    stored = _model_of_theirs(state)
    options = _options(state.get("args"))
    relative = RELATIVE_POSITIONS in stored
    if options.get("rel_pos", relative) is not relative:
        raise ValueError(
            f"its option rel_pos is {_shown(options['rel_pos'])} but {RELATIVE_POSITIONS} is "
            f"{'there' if relative else 'missing'}"
        )
    layers = next(i for i in count() if f"decoder.sentence_encoder.layers.{i}.fc1.weight" not in stored)
    if not layers:
        raise ValueError("it holds no layers")
    found = (re.fullmatch(r"classification_heads\.(\w+)\.dense\.weight", name, re.ASCII) for name in stored)
    # Names that torch's ModuleDict cannot take are left to `_check_names`.
    taken = torch.nn.ModuleDict()
    heads = [match[1] for match in found if match and not hasattr(taken, match[1])]
    table = parameters(layers, relative, heads)
    _check_names(stored, table)
    weights = {name: _float32(name, weight) for name, weight in stored.items()}
    sizes = _sizes(weights, table)
    _check_tied(weights)
    types = sorted({str(weight.dtype).removeprefix("torch.") for weight in stored.values()})
    shape = {
        "variant": "tupe_r" if relative else "tupe_a",
        "encoder_layers": layers,
        "encoder_embed_dim": sizes["D"],
        "encoder_ffn_embed_dim": sizes["F"],
        "encoder_attention_heads": _attention_heads(options, sizes),
        "max_positions": sizes["P"] - 1,
    }
    for name, value in shape.items():
        if name in options and options[name] != value:
            raise ValueError(f"its option {name} is {_shown(options[name])}, its weights have {value}")
    return Official(
        options={**shape, **BUCKETS, **_dropouts(options)},
        weights={table[name][0]: weight for name, weight in weights.items() if name != TIED},
        vocabulary=sizes["V"],
        heads={head: sizes[f"C.{head}"] for head in heads},
        stored=" and ".join(types),
        left_out=sorted(_shown(name) for name in state.keys() - {"args", "model"}),
    )


def _model_of_theirs(state: dict[str, Any]) -> dict[str, Any]:
    """The entries of the model by name; nothing is known of their values yet."""
    model = state.get("model")
    if not isinstance(model, dict) or not all(isinstance(name, str) for name in model):
        raise ValueError("it holds no model")
    if "encoder.position_bias.absolute.embedding.weight" in model:
        raise ValueError("it is a checkpoint of this plugin, which takes it as it is")
    for name in model:
        if name.endswith("sentence_encoder.embed_positions.weight"):
            raise ValueError(
                f"it is a RoBERTa or BERT of fairseq: positions enter at its input ({_shown(name)})"
            )
    if POSITIONS not in model:
        raise ValueError(f"it is no TUPE of the authors' code: {POSITIONS} is missing")
    return model


def _options(args: Any) -> dict[str, Any]:
    """Their options, which make a model that ours can be."""
    if type(args) is not argparse.Namespace:
        raise ValueError("it holds no options ('args'), as every checkpoint of the authors' code does")
    options = vars(args)
    for name, wanted in FIXED.items():
        value = options.get(name)
        if type(value) is not type(wanted) or value != wanted:
            raise ValueError(f"its option {name} is {_shown(value)}, and our model has {wanted!r} alone")
    return options


def _dropouts(options: dict[str, Any]) -> dict[str, float]:
    names = ("dropout", "attention_dropout", "activation_dropout", "pooler_dropout")
    for name in names:
        value: Any = options.get(name)
        if type(value) not in (int, float) or not 0 <= value < 1:
            raise ValueError(f"its option {name} is {_shown(value)}, not a probability below 1")
    return {name: float(options[name]) for name in names}


def _attention_heads(options: dict[str, Any], sizes: dict[str, int]) -> int:
    """Heads by the options, which the relative table, where there is one, must confirm."""
    heads: Any = options.get("encoder_attention_heads")
    if type(heads) is not int or heads < 1 or sizes["D"] % heads:
        raise ValueError(
            f"its option encoder_attention_heads is {_shown(heads)}, no divisor of the width {sizes['D']}"
        )
    if sizes.get("H", heads) != heads:
        raise ValueError(
            f"its relative table has {sizes['H']} heads, its option encoder_attention_heads says {heads}"
        )
    return heads


def _check_tied(weights: dict[str, Tensor]) -> None:
    bits = [weights[name].view(torch.int32) for name in (TIED, EMBEDDINGS)]  # in which NaN equals itself
    if not torch.equal(*bits):
        raise ValueError(f"{TIED} is not {EMBEDDINGS} once more, and our model has one matrix for both")


def _check_names(model: dict[str, Any], table: dict[str, Any]) -> None:
    missing, unknown = table.keys() - model.keys(), model.keys() - table.keys()
    for names, problem in ((missing, "it lacks"), (unknown, "no TUPE of the authors' code has")):
        if names:
            shown = ", ".join(_shown(name) for name in sorted(names)[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ValueError(f"{problem} the parameter(s) {shown}{more}")


def _float32(name: str, weight: Any) -> Tensor:
    """A copy that shares nothing with the file."""
    ordinary = (
        type(weight) in (Tensor, torch.nn.Parameter)
        and weight.dtype in FLOATS
        and weight.layout is torch.strided
        and not (weight.is_nested or weight.is_neg())
        and weight.device.type == "cpu"
        and weight.is_contiguous()
        and weight.numel() > 0
    )
    if not ordinary:
        kind = f"a tensor of {weight.dtype}" if isinstance(weight, Tensor) else f"a {type(weight).__name__}"
        raise ValueError(f"{name} is {kind}, not an ordinary tensor of floating-point numbers")
    return weight.detach().to(torch.float32, copy=True)


def _sizes(weights: dict[str, Tensor], table: dict[str, tuple[str, str]]) -> dict[str, int]:
    """The size behind each word of the table; every shape must agree with those before it."""
    width = weights[EMBEDDINGS].shape[-1] if weights[EMBEDDINGS].dim() else 0
    sizes = {"3D": 3 * width, "33": BUCKETS["rel_pos_bins"] + 1}
    for name, (_, words) in table.items():
        shape, names = list(weights[name].shape), words.split()
        asked = [sizes.setdefault(word, size) for word, size in zip(names, shape)]
        if len(shape) != len(names) or shape != asked:
            wanted = [sizes.get(word, word) for word in names]
            raise ValueError(f"{name} has the shape {shape} where the others ask for {wanted}")
    if sizes["P"] < 2:
        raise ValueError(f"{POSITIONS} has {sizes['P']} row, which leaves no position")
    return sizes


def _shown(value: Any) -> str:
    """A value of a file in a message, whatever it is."""
    if type(value) in (str, int, float, bool, type(None)):  # torch reads no number of more than 255 bytes
        return f"{value!r:.100}"
    return f"a {type(value).__name__}"
