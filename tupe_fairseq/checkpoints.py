"""Checkpoints on disk: reading them without running anything that they hold."""

from __future__ import annotations

import errno
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

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
        ValueError: the file is empty, damaged, no checkpoint, or holds more than tensors and plain values.
    """
    path = Path(path)
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
        ValueError: there are none of a tupe model.
    """
    weights = state.get("model")
    if not isinstance(weights, dict) or EMBEDDINGS not in weights:
        raise ValueError(f"{source} holds no weights of a model of this plugin: {EMBEDDINGS} is missing")
    return weights


def model_options(state: dict[str, Any], source: str | Path = "the checkpoint") -> dict[str, Any]:
    """The options of the model in a checkpoint of fairseq-train, with its architecture under ``_name``.

    Args:
        state: what `load` returns.
        source: where that came from, for the message.

    Raises:
        ValueError: the checkpoint is not of a tupe model.
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
    return options
