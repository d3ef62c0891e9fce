"""Where a training starts from: the checkpoint that fairseq will load, looked at before anything is trained.

fairseq goes on from SAVE_DIR's last checkpoint, or starts from --restore-file or --finetune-from-model. It
trains from nothing where the named file does not exist, and cannot see options that leave shapes alone, such
as the number of heads or another vocabulary of the same size.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

from . import checkpoints
from .config import SHAPE, TupeConfig

logger = logging.getLogger(__name__)

_LAST = "checkpoint_last.pt"  # fairseq's default of --restore-file


class Start(NamedTuple):
    """A checkpoint to start from."""

    path: Path
    resumed: bool  # with the optimizer's state, which has the shapes of the weights


def find_start(options: Any) -> Start | None:
    """The checkpoint that ``fairseq.checkpoint_utils.load_checkpoint`` is about to load, if any.

    Args:
        options: fairseq's group of options ``checkpoint``.
    """
    suffix, resumed = options.checkpoint_suffix, not options.reset_optimizer
    if options.restore_file != _LAST:
        return Start(Path(options.restore_file.replace(".pt", f"{suffix}.pt")), resumed)
    last = Path(options.save_dir, _LAST.replace(".pt", f"{suffix}.pt"))
    if last.exists():
        return Start(last, resumed)
    if options.continue_once is not None:
        return Start(Path(options.continue_once), resumed)
    if options.finetune_from_model is not None:
        return Start(Path(options.finetune_from_model), resumed=False)
    return None


def check_start(start: Start, cfg: TupeConfig, symbols: int, task_state: dict[str, Any]) -> None:
    """Refuses a checkpoint whose weights do not fit, or would mean something else.

    Args:
        cfg: the options of the model that is about to be trained.
        symbols: size of its vocabulary.
        task_state: what the task that is about to be trained would put into checkpoints.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no checkpoint of this model; the sentence names both sides and the flags to change.
    """
    state = checkpoints.load(start.path)
    options = checkpoints.model_options(state, start.path)
    there = {name: str(options.get(name)) for name in SHAPE}
    here = {name: str(getattr(cfg, name)) for name in SHAPE}
    differ = [name for name in SHAPE if there[name] != here[name]]
    resize = cfg.resize_positions and "max_positions" in differ
    if resize:
        differ.remove("max_positions")
    problems = [f"{name} {there[name]} there, {here[name]} here ({_flag(name)})" for name in differ]
    problems += _other_vocabulary(state, start.path, symbols, task_state[checkpoints.VOCABULARY])
    if start.resumed:
        problems += _other_glue_task(state, task_state)
    if problems:
        way_out = "Give these flags its values, or name another checkpoint (or --save-dir)."
        if differ == ["max_positions"]:
            way_out = f"{way_out} --resize-positions makes its position rows fit."
        raise ValueError(f"{start.path} is of another model: {'; '.join(problems)}. {way_out}")
    if resize and start.resumed:
        raise ValueError(
            f"{start.path} has an optimizer's state for {there['max_positions']} positions, which "
            "--resize-positions leaves alone; add --reset-optimizer, or use --finetune-from-model"
        )


def check_vocabulary(state: dict[str, Any], source: str | Path, symbols: int, fingerprint: str) -> None:
    """Refuses a checkpoint that was trained with another vocabulary.

    Raises:
        ValueError: the vocabularies differ in size, in a piece, or in the order of pieces.
    """
    problems = _other_vocabulary(state, source, symbols, fingerprint)
    if problems:
        raise ValueError(
            f"{source} does not fit the data: {problems[0]}; prepare the data with the vocabulary "
            "(spm.model, dict.txt) that the model was trained on"
        )


def _other_vocabulary(state: dict[str, Any], source: str | Path, symbols: int, fingerprint: str) -> list[str]:
    there = len(checkpoints.model_weights(state, source)[checkpoints.EMBEDDINGS])
    if there != symbols:
        return [f"a vocabulary of {there:,} there, of {symbols:,} here (dict.txt of the data folder)"]
    known = (state.get("task_state") or {}).get(checkpoints.VOCABULARY)
    if known is None:
        logger.warning("%s has no fingerprint of its vocabulary; its size was compared alone", source)
    elif known != fingerprint:
        return [f"another vocabulary of the same {symbols:,} pieces (dict.txt of the data folder)"]
    return []


def _other_glue_task(state: dict[str, Any], task_state: dict[str, Any]) -> list[str]:
    """To go on with another task would train its sentence head further; a fresh start may take the model."""
    there, here = (of.get(checkpoints.GLUE_TASK) for of in (state.get("task_state") or {}, task_state))
    if there in (None, here):
        return []
    return [f"fine-tuned on {there} there, {here or 'not at all'} here (--finetune-from-model starts anew)"]


def _flag(option: str) -> str:
    return "--arch" if option == "variant" else f"--{option.replace('_', '-')}"
