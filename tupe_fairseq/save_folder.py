"""A folder of checkpoints: one run at a time, no half files, and the newest checkpoint that is whole."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

from . import checkpoints

LAST = "checkpoint_last.pt"  # what fairseq goes on from
LOCK = ".lock"
_held: set[Path] = set()  # their locks' files stay open until the process ends; closing one would free it


class Whole(NamedTuple):
    """A checkpoint that can be read to its last byte."""

    path: Path
    updates: int

    def __str__(self) -> str:
        return f"{self.path} (update {self.updates})"


def lock(folder: Path) -> None:
    """Takes the folder for this process, until it ends in whatever way.

    The kernel knows such a lock by the process: children that outlive it for a moment, as data workers of a
    killed run do, do not keep it.

    Raises:
        ValueError: another process has it.
    """
    path = folder.resolve() / LOCK
    if path in _held:
        return
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(file, 1000).decode(errors="replace").strip() or "another process"
        os.close(file)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise ValueError(
            f"another run trains into {folder} ({holder}); wait for its end, stop it, or name another "
            "SAVE_DIR"
        ) from None
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    _held.add(path)


def find_checkpoint(path: Path) -> Path:
    """The checkpoint to use of a folder, or the file that was named.

    Raises:
        FileNotFoundError: the folder has none.
    """
    if not path.is_dir():
        return path
    best, last = path / "checkpoint_best.pt", path / LAST
    if not best.is_file():
        if not last.is_file():
            raise FileNotFoundError(f"{path} has neither {best.name} nor {last.name}; name a checkpoint")
        print(f"note: {path} has no {best.name}; this is {last.name}")
        return last
    return best


def remove_leftovers(folder: Path) -> list[str]:
    """Removes what kills have left of checkpoints half written; returns the names."""
    parts = [*folder.glob(".*.pt.part"), *folder.glob("*.pt.tmp")]  # ours, and fairseq's own
    for part in parts:
        part.unlink(missing_ok=True)
    return [part.name for part in parts]


def damage(path: Path) -> str | None:
    """What is wrong with the bytes of a checkpoint, which are all read; None where nothing is."""
    if not path.stat().st_size:
        return "it is empty"
    try:
        with zipfile.ZipFile(path) as archive:
            record = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError):
        return "it was cut off, or is no checkpoint"
    return f"the bytes of its part {record} have changed" if record else None


def to_go_on_from(folder: Path) -> Whole | None:
    """What a training in this folder goes on from: its last checkpoint, or the newest if that is damaged."""
    last = folder / LAST
    if last.exists() and not damage(last):
        return Whole(last, updates(last))
    return newest(folder, but=last)


def updates(path: Path) -> int:
    """How many updates a checkpoint has seen.

    Raises:
        ValueError: it is no checkpoint of a training.
    """
    try:
        return int(checkpoints.load(path)["optimizer_history"][-1]["num_updates"])
    except (TypeError, LookupError):
        raise ValueError(f"{path} has no record of a training") from None


def newest(folder: Path, but: Path) -> Whole | None:
    """Of the whole checkpoints of a folder but one, that with the most updates; None where there is none."""
    found = []
    for path in sorted(folder.glob("checkpoint*.pt")):
        if path == but or damage(path):
            continue
        try:
            found.append(Whole(path, updates(path)))
        except ValueError:
            continue
    return max(found, key=lambda whole: whole.updates, default=None)
