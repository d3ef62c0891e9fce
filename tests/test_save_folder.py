"""A folder of checkpoints: its lock, what kills leave there, and which of its files are whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tupe_fairseq.save_folder import Whole, damage, lock, newest, remove_leftovers, to_go_on_from

HOLD = """
import os, sys
from pathlib import Path
from tupe_fairseq.save_folder import lock
lock(Path(sys.argv[1]))
if os.fork():
    print(os.getpid(), flush=True)
os.read(0, 1)
"""


def checkpoint(path: Path, updates: int) -> Path:
    history = [{"num_updates": updates}]
    torch.save({"optimizer_history": history, "model": {"w": torch.arange(1000.0)}}, path)
    return path


def change_a_bit(path: Path) -> None:
    """In the middle, where the numbers of the tensor are."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    """By SIGKILL, and although a child of the process, as a data worker is, lives on."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin and holder.stdout
    holder.stdout.readline()
    with pytest.raises(ValueError, match=rf"another run trains into .* \(process {holder.pid} on "):
        lock(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    lock(tmp_path)
    lock(tmp_path)  # by the same process
    holder.stdin.close()  # the child ends
    holder.stdout.close()


def test_leftovers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = {"checkpoint_last.pt", "checkpoint_1_5.pt", "dict.txt", ".lock", "notes.part"}
    left = {".checkpoint_last.pt.part", "checkpoint_1_10.pt.tmp"}
    for name in kept | left:
        (tmp_path / name).touch()
    assert set(remove_leftovers(tmp_path)) == left
    assert {path.name for path in tmp_path.iterdir()} == kept


@pytest.mark.parametrize("size", [0, 1, 100, -1000, -1])
def test_a_file_cut_anywhere_is_damaged(size: int, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "checkpoint_last.pt", 1)
    assert damage(path) is None
    path.write_bytes(path.read_bytes()[:size])
    assert damage(path) == ("it was cut off, or is no checkpoint" if size else "it is empty")


def test_a_changed_bit_is_damage(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "checkpoint_last.pt", 1)
    change_a_bit(path)
    assert damage(path) == "the bytes of its part checkpoint_last/data/0 have changed"


def test_what_a_training_goes_on_from(tmp_path: Path) -> None:
    """Its last checkpoint; without a whole one, that with the most updates, however the names sort."""
    assert to_go_on_from(tmp_path) is None
    nine, ten = (checkpoint(tmp_path / f"checkpoint_1_{n}.pt", n) for n in (9, 10))
    assert to_go_on_from(tmp_path) == Whole(ten, 10)
    last = checkpoint(tmp_path / "checkpoint_last.pt", 8)
    assert to_go_on_from(tmp_path) == Whole(last, 8)
    change_a_bit(last)
    assert to_go_on_from(tmp_path) == Whole(ten, 10)
    change_a_bit(ten)
    assert str(to_go_on_from(tmp_path)) == f"{nine} (update 9)"
    assert newest(tmp_path, but=nine) is None


def test_what_is_no_checkpoint_of_a_training_does_not_count(tmp_path: Path) -> None:
    torch.save({"model": {}}, tmp_path / "checkpoint_1_1.pt")
    torch.save([1], tmp_path / "checkpoint_1_2.pt")
    checkpoint(tmp_path / "crash.pt", 9)
    assert to_go_on_from(tmp_path) is None
