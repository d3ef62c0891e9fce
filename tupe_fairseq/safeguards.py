"""What a training of this plugin does in fairseq's place, so that days of work cannot be lost in silence.

`install` puts these in, when a model is built to be trained; nothing of fairseq on disk is changed.

- Checkpoints are written and copied beside their final names, brought to the disk, and renamed. fairseq
  copies checkpoint_last.pt in place, and after a failure goes on writing behind the first half.
- Weights that are no finite numbers are not saved.
- A loss or gradient that is no finite number ends the run, with the update and the way back in the last line.
- So does a disk that is full, also where it is TensorBoard that finds out.
"""

from __future__ import annotations

import errno
import functools
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer

from .save_folder import to_go_on_from
from .whole_file import whole_file

logger = logging.getLogger(__name__)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ATTEMPTS, _PAUSE = 3, 2.5  # fairseq's, for file systems that fail for a moment
_INSTALLED = "_of_tupe_fairseq"  # the plugin may be loaded twice, from two places


def install(save_dir: str) -> None:
    """Puts the functions below in place of fairseq's, once in a process."""
    if hasattr(Trainer, _INSTALLED):
        return
    checkpoint_utils.torch_persistent_save = save
    PathManager.copy = staticmethod(copy)
    Trainer.train_step = guarded(Trainer.train_step)
    sys.excepthook = with_last_words(sys.excepthook, Path(save_dir))
    setattr(Trainer, _INSTALLED, True)


def save(state: dict[str, Any], filename: str, async_write: bool = False) -> None:
    """Writes a checkpoint whole or not at all.

    Raises:
        FloatingPointError: a weight is no finite number.
        OSError: it cannot be written; the sentence names the last whole checkpoint.
    """
    path = Path(filename)
    _check_finite(state, path)
    with _full_disk_said(path), whole_file(path) as part:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _write(state, part)
                break
            except Exception as error:
                if _is_full(error) or attempt == _ATTEMPTS:
                    raise
                logger.warning("%s was not written (%s); trying again", path, error)
                time.sleep(_PAUSE)
    _sync_folder(path.parent)


def copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """Copies a checkpoint whole or not at all; bytes of its own, so that damage to one spares the other.

    Raises:
        OSError: it cannot be written; the sentence names the last whole checkpoint.
    """
    target = Path(dst_path)
    if target.exists() and not overwrite:
        return False
    with _full_disk_said(target), whole_file(target) as part:
        shutil.copyfile(src_path, part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
    _sync_folder(target.parent)
    return True


def guarded(train_step: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's step of training, which ends the run where the loss or a gradient is no finite number."""

    @functools.wraps(train_step)
    def step(self: Any, samples: Any, *args: Any, **kwargs: Any) -> Any:
        update, folder = self.get_num_updates() + 1, self.cfg.checkpoint.save_dir
        try:
            output = train_step(self, samples, *args, **kwargs)
        except FloatingPointError as error:
            raise FloatingPointError(explain(str(error), update, folder)) from error
        # None where fairseq skips an update, as --fp16 does to find its loss scale
        if output is not None and not math.isfinite(output.get("loss", 0)):
            raise FloatingPointError(explain(f"the loss is {float(output['loss'])}", update, folder))
        return output

    return step


def with_last_words(hook: Callable[..., Any], folder: Path) -> Callable[..., None]:
    """What Python does with an error that ends the process, and a sentence where that is a full disk."""

    def say(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        hook(kind, error, trace)
        if isinstance(error, OSError) and error.errno in _FULL:  # `save` and `copy` have said it themselves
            print(f"fairseq-train: a log was not written, {_room_needed(folder)}", file=sys.stderr)

    return say


def explain(problem: str, update: int, folder: str) -> str:
    """One sentence: what happened at which update, and the way back."""
    if "loss scale" in problem:
        way_out = "with a smaller --lr, more --warmup-updates, or --bf16 in place of --fp16"
    else:
        way_out = "with a smaller --lr or --clip-norm, or more --warmup-updates"
    return f"update {update} failed: {problem.rstrip('.')}; {_way_back(Path(folder))} {way_out}"


def _way_back(folder: Path) -> str:
    last = to_go_on_from(folder)
    if last is None:
        return f"{folder} has no checkpoint yet, so the same command begins anew; give it"
    return f"the last good checkpoint is {last}, from which the same command goes on; give it"


def _check_finite(state: dict[str, Any], path: Path) -> None:
    for name, weight in state["model"].items():
        if weight.is_floating_point() and not torch.isfinite(weight).all():
            update = state["optimizer_history"][-1]["num_updates"]
            problem = f"the weight {name} is no longer finite, so {path.name} was not written"
            raise FloatingPointError(explain(problem, update, str(path.parent)))


def _write(state: dict[str, Any], part: Path) -> None:
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _full_disk_said(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not _is_full(error):
            raise
        raise OSError(f"{path} was not written, {_room_needed(path.parent)}") from error


def _room_needed(folder: Path) -> str:
    free, last = shutil.disk_usage(folder).free / 2**20, to_go_on_from(folder)
    return (
        f"as the disk is full or a limit of sizes is reached ({free:,.1f} MiB are free); "
        f"{f'the last good checkpoint is {last}' if last else 'there is no checkpoint yet'}; "
        "make room and give the same command again"
    )


def _is_full(error: BaseException | None) -> bool:
    """torch may hide the error of a file behind its own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def _sync_folder(folder: Path) -> None:
    """Brings new names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
