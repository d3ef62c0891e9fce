"""Checkpoints on disk: reading them without running anything that they hold."""

from __future__ import annotations

import errno
import logging
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .variants import VARIANTS

logger = logging.getLogger(__name__)

# The options that decide which weights a model has and what they mean; the others may change with every run.
SHAPE = (
    "variant",
    "encoder_layers",
    "encoder_embed_dim",
    "encoder_ffn_embed_dim",
    "encoder_attention_heads",
    "max_positions",
    "rel_pos_bins",
    "max_rel_pos",
)
# Names in the state of our tasks, which fairseq keeps in checkpoints as "task_state".
VOCABULARY = "vocabulary"  # fingerprint
GLUE_TASK = "glue_task"  # name of the task that a model was fine-tuned on
EMBEDDINGS = "encoder.embed_tokens.weight"  # (V, D)
_REFUSED = re.compile(r"GLOBAL (\S+) (?:was not an allowed|whose module)")  # torch's messages


def load(path: str | Path, classes: Sequence[type | tuple[type, str]] = ()) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Only tensors and plain values are read: a file that names other classes or functions is refused before any
    of them runs. Tensors are mapped into memory and read from disk when they are used.

    Args:
        path: the file.
        classes: what may be built besides, each a class, or a class and the name that it has in the file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is empty, damaged, a folder, no checkpoint, or holds more than tensors and plain
            values.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a checkpoint in it")
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}")
    if not path.stat().st_size:
        raise ValueError(f"checkpoint {path} is empty; it was probably cut off while it was written")
    try:
        # Files from before torch 1.6 are no zip archives and cannot be mapped.
        with torch.serialization.safe_globals(list(classes)):
            state = torch.load(
                str(path), map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except Exception as error:  # other bytes read as a pickle program can fail in any way
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # torch's word for half an archive
            raise
        refused = _REFUSED.search(str(error))
        if refused:
            hint = "" if classes else "; python -m tupe_fairseq.convert reads those of TUPE's authors"
            raise ValueError(
                f"checkpoint {path} was not loaded: it names {refused[1]}, and loading that could run "
                f"code{hint}"
            ) from None
        reason = type(error).__name__
        raise ValueError(f"{path} is no checkpoint, or was cut off while it was written ({reason})") from None
    if not isinstance(state, dict):
        raise ValueError(f"{path} is no checkpoint of a model: it holds one {type(state).__name__}")
    return state


def model_weights(state: dict[str, Any], source: str | Path = "the checkpoint") -> dict[str, torch.Tensor]:
    """The weights of the model in a checkpoint, by name.

    Args:
        state: what `load` returns.
        source: where that came from, for the message.

    Raises:
        ValueError: there are none of a tupe model, or one is no tensor of floating-point numbers.
    """
    weights = state.get("model")
    if not isinstance(weights, dict) or EMBEDDINGS not in weights:
        raise ValueError(f"{source} holds no weights of a model of this plugin: {EMBEDDINGS} is missing")
    check_weights(weights, source)
    if weights[EMBEDDINGS].dim() != 2:
        raise ValueError(f"{source} holds no weights of a model: {EMBEDDINGS} is no matrix")
    return weights


def check_weights(weights: dict[str, Any], source: str | Path = "the checkpoint") -> None:
    """Refuses what torch would convert, or fail on, in silence or in its own words.

    Raises:
        ValueError: a weight is no ordinary tensor of floating-point numbers.
    """
    for name, weight in weights.items():
        kind = f"a {type(weight).__name__}"
        if isinstance(weight, torch.Tensor):
            if weight.is_floating_point() and weight.layout is torch.strided:
                continue
            kind = f"a tensor of {weight.dtype} ({weight.layout})"
        raise ValueError(f"{source}: the weight {name} is {kind}, not a tensor of floating-point numbers")


def model_options(state: dict[str, Any], source: str | Path = "the checkpoint") -> dict[str, Any]:
    """The options of the model in a checkpoint of fairseq-train, with its architecture under ``_name``.

    Args:
        state: what `load` returns.
        source: where that came from, for the message.

    Raises:
        ValueError: the checkpoint is not of a tupe model, or an option is missing or not of its kind.
    """
    cfg = state.get("cfg")
    options = cfg.get("model") if isinstance(cfg, dict) else None
    if not isinstance(options, dict):
        raise ValueError(f"{source} holds no options of a model; fairseq-train with this plugin writes them")
    if "variant" not in options or "rel_pos_bins" not in options:
        raise ValueError(f"{source} holds a model {options.get('_name')!r}, not one of this plugin")
    for name, value in options.items():
        # Scripts make flags of them, and fairseq evaluates some flags: only names and numbers may pass.
        if not isinstance(value, (int, float)) and not re.fullmatch(r"\w+", str(value), re.ASCII):
            raise ValueError(
                f"{source} was not used: its model option {name!r} is neither a name nor a number"
            )
    if not isinstance(options.get("_name"), str) or options["variant"] not in VARIANTS:
        raise ValueError(
            f"{source} holds a model {options.get('_name')!r}, {options['variant']!r}, which is unknown"
        )
    for name in SHAPE[1:]:
        if type(options.get(name)) is not int:
            raise ValueError(f"{source} was not used: its model option {name} is {options.get(name)!r}")
    for name, value in options.items():
        if name.endswith("dropout") and type(value) not in (int, float):
            raise ValueError(f"{source} was not used: its model option {name} is {value!r}")
    return options


def task_state(state: dict[str, Any]) -> dict[str, Any]:
    """What the task of a checkpoint has put into it: VOCABULARY, GLUE_TASK; nothing where there is none."""
    stored = state.get("task_state")
    return stored if isinstance(stored, dict) else {}


def check_vocabulary(state: dict[str, Any], source: str | Path, symbols: int, fingerprint: str) -> None:
    """Refuses a checkpoint that was trained with another vocabulary.

    Raises:
        ValueError: the vocabularies differ in size, in a piece, or in the order of pieces.
    """
    problems = other_vocabulary(state, source, symbols, fingerprint)
    if problems:
        raise ValueError(
            f"{source} does not fit the data: {problems[0]}; prepare the data with the vocabulary "
            "(spm.model, dict.txt) that the model was trained on"
        )


def other_vocabulary(state: dict[str, Any], source: str | Path, symbols: int, fingerprint: str) -> list[str]:
    """In what the vocabularies of a checkpoint and of here differ, in words."""
    there = len(model_weights(state, source)[EMBEDDINGS])
    if there != symbols:
        return [f"a vocabulary of {there:,} there, of {symbols:,} here (dict.txt of the data folder)"]
    known = task_state(state).get(VOCABULARY)
    if known is None:
        logger.warning("%s has no fingerprint of its vocabulary; its size was compared alone", source)
    elif known != fingerprint:
        return [f"another vocabulary of the same {symbols:,} pieces (dict.txt of the data folder)"]
    return []
