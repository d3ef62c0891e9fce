"""Where a training starts from: the checkpoint that fairseq will load, looked at before anything is trained.

fairseq goes on from SAVE_DIR's last checkpoint, or starts from --restore-file or --finetune-from-model. It
trains from nothing where the named file does not exist, and cannot see options that leave shapes alone, such
as the number of heads or another vocabulary of the same size.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from . import checkpoints
from .checkpoints import SHAPE
from .model import TupeModel
from .save_folder import LAST, damage, newest

logger = logging.getLogger(__name__)


class Start(NamedTuple):
    """A checkpoint to start from."""

    path: Path
    resumed: bool  # with the optimizer's state, which has the shapes of the weights
    own: bool = False  # of SAVE_DIR


def skip_damaged(options: Any) -> None:
    """Where SAVE_DIR's last checkpoint is damaged or gone, has fairseq go on from the newest whole one there.

    Args:
        options: fairseq's group of options ``checkpoint``, which is changed.

    Raises:
        ValueError: there are checkpoints, but none of them is whole.
    """
    folder, suffix = Path(options.save_dir), options.checkpoint_suffix
    if options.restore_file != LAST or suffix or not any(folder.glob("checkpoint*.pt")):
        return
    last = folder / LAST
    problem = damage(last) if last.exists() else "there is no such file"
    if problem is None:
        return
    whole = newest(folder, but=last)
    if whole is None:
        raise ValueError(
            f"{last} cannot be used ({problem}), and {folder} has no other whole checkpoint to go on from; "
            "put a copy in its place, or name another --save-dir to begin anew"
        )
    logger.warning("%s cannot be used (%s); going on from %s", last, problem, whole)
    options.restore_file, options.finetune_from_model = str(whole.path), None


def finished(start: Start, state: dict[str, Any], whole: Any) -> str | None:
    """That nothing is left to do, as a sentence, where the checkpoint is the end of this very run.

    fairseq looks at --max-update after an update, and would do one more.

    Args:
        state: what the checkpoint holds.
        whole: fairseq's whole configuration.
    """
    if not (start.own and start.resumed):
        return None
    limits = whole.optimization
    updates = state["optimizer_history"][-1].get("num_updates", 0)
    data = state["extra_state"].get("train_iterator", {})
    epochs = 0 if whole.checkpoint.reset_dataloader else data.get("epoch", 1) - 1
    if 0 < limits.max_update <= updates:
        done, flag, limit = f"{updates:,} updates", "--max-update", limits.max_update
    elif 0 < limits.max_epoch <= epochs:
        done, flag, limit = f"{epochs:,} epochs", "--max-epoch", limits.max_epoch
    else:
        return None
    return f"{whole.checkpoint.save_dir} is finished: {done} of {flag} {limit}; nothing was changed"


def find_start(options: Any) -> Start | None:
    """The checkpoint that ``fairseq.checkpoint_utils.load_checkpoint`` is about to load, if any.

    Args:
        options: fairseq's group of options ``checkpoint``.
    """
    suffix, resumed = options.checkpoint_suffix, not options.reset_optimizer
    if options.restore_file != LAST:  # fairseq's default
        path = Path(options.restore_file.replace(".pt", f"{suffix}.pt"))
        return Start(path, resumed, own=path.parent == Path(options.save_dir))
    last = Path(options.save_dir, LAST.replace(".pt", f"{suffix}.pt"))
    if last.exists():
        return Start(last, resumed, own=True)
    if options.continue_once is not None:
        return Start(Path(options.continue_once), resumed)
    if options.finetune_from_model is not None:
        return Start(Path(options.finetune_from_model), resumed=False)
    return None


def running_averages(state: dict[str, Any]) -> dict[str, Any]:
    """What fairseq had averaged since the last line of the log, by the name of the average."""
    averages = state["extra_state"].get("metrics", {})
    return {name: state for name, state in averages.items() if name == "train_inner"}


def check_start(start: Start, state: dict[str, Any], model: TupeModel, task_state: dict[str, Any]) -> None:
    """Refuses a checkpoint whose weights do not fit, or would mean something else.

    Args:
        state: what the checkpoint holds.
        model: what is about to be trained. It is told what to do with the checkpoint's sentence heads.
        task_state: what its task would put into checkpoints.

    Raises:
        ValueError: it is no checkpoint of this model; the sentence names both sides and the flags to change.
    """
    options = checkpoints.model_options(state, start.path)
    weights = dict(checkpoints.model_weights(state, start.path))
    _check_history(start, state)
    differ = [name for name in SHAPE if str(options.get(name)) != str(getattr(model.cfg, name))]
    if model.cfg.resize_positions and "max_positions" in differ:
        _check_resizing(start, state, weights, model)
        differ.remove("max_positions")
    here = vars(model.cfg)
    problems = [f"{name} {options.get(name)} there, {here[name]} here ({_flag(name)})" for name in differ]
    symbols, fingerprint = model.encoder.cfg.vocab_size, task_state[checkpoints.VOCABULARY]
    problems += checkpoints.other_vocabulary(state, start.path, symbols, fingerprint)
    known, own = (of.get(checkpoints.GLUE_TASK) for of in (checkpoints.task_state(state), task_state))
    if start.resumed and known not in (None, own):
        problems.append(f"fine-tuned on {known} there, {own or 'not at all'} here")
    if problems:
        another = "--save-dir" if start.own else "checkpoint"
        way_out = f"Give these flags its values, or name another {another}."
        if differ == ["max_positions"]:
            way_out = f"{way_out} --resize-positions makes its position rows fit."
        raise ValueError(f"{start.path} is of another model: {'; '.join(problems)}. {way_out}")
    _check_shapes(start, weights, model)
    if not start.resumed:
        model.checkpoint_heads = "if they fit" if known in (None, own) else "unused"


def _check_history(start: Start, state: dict[str, Any]) -> None:
    """What fairseq reads in the file besides, whatever it then does with it."""
    history: Any = state.get("optimizer_history")
    record = history[-1] if isinstance(history, list) and history else None
    complete = isinstance(record, dict) and ("lr_scheduler_state" in record or "best_loss" in record)
    if not (complete and isinstance(state.get("extra_state"), dict)):
        raise ValueError(
            f"{start.path} has weights without the record of a training (optimizer_history, extra_state), "
            "which fairseq-train writes beside them and needs"
        )
    if start.resumed and history[-1].get("num_updates") and "last_optimizer_state" not in state:
        raise ValueError(
            f"{start.path} was saved without the optimizer's state, so its training cannot go on; "
            "--finetune-from-model starts a new one with its weights, in another --save-dir"
        )


def _check_resizing(
    start: Start, state: dict[str, Any], weights: dict[str, Tensor], model: TupeModel
) -> None:
    if start.resumed and "last_optimizer_state" in state:
        way_out = "name another --save-dir" if start.own else "add --reset-optimizer"
        raise ValueError(
            f"{start.path} has an optimizer's state for another number of positions, which "
            f"--resize-positions cannot change; {way_out}"
        )
    try:
        model.resize_positions(weights)
    except (KeyError, ValueError) as error:
        raise ValueError(f"{start.path} cannot be resized: {error}") from None


def _check_shapes(start: Start, weights: dict[str, Tensor], model: TupeModel) -> None:
    """Options that agree promise the same weights, but for sentence heads, which may come and go."""
    own = model.state_dict()
    for problem, names in (
        ("lacks", own.keys() - weights.keys()),
        ("has unknown weights", weights.keys() - own.keys()),
        ("has in another shape", {n for n in own.keys() & weights if own[n].shape != weights[n].shape}),
    ):
        if problem == "has unknown weights" or not start.resumed:
            names = {name for name in names if not str(name).startswith("classification_heads.")}
        if names:
            shown = ", ".join(sorted(map(str, names))[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ValueError(f"{start.path} {problem}: {shown}{more}")


def _flag(option: str) -> str:
    return "--arch" if option == "variant" else f"--{option.replace('_', '-')}"
