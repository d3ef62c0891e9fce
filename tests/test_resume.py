"""A pre-training that is killed, or meets a full disk or a damaged file, ends as one that never was."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
import tiny_run
from tiny_run import ROOT, UPDATES, command, equal, losses, result, said, start, train

from tupe_fairseq.save_folder import updates

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def corpora(folder: Path) -> str:
    return tiny_run.make_corpora(folder)


@pytest.fixture(scope="module")
def unbroken(folder: Path, corpora: str) -> Path:
    """SAVE_DIR of a run that nothing happened to; not to be changed."""
    status, output = train(command(corpora, folder / "unbroken"), folder / "unbroken.log")
    assert status == 0, output
    return folder / "unbroken"


def assert_same(save_dir: Path, unbroken: Path) -> None:
    for part, value in result(unbroken).items():
        assert equal(result(save_dir)[part], value), part
    for tag in ("train_inner", "train", "valid"):
        assert losses(save_dir, tag) == losses(unbroken, tag)
    assert {path.name for path in save_dir.glob("*.pt*")} == {path.name for path in unbroken.glob("*.pt*")}
    assert list(save_dir.glob(".*.part")) == []


def test_the_run_has_what_can_go_wrong(unbroken: Path) -> None:
    """Or the tests below would show nothing: it learns, and averages of the log reach over ends of epochs."""
    found = losses(unbroken)
    assert list(found) == [5, 10, 15, 20]
    assert {4, 7, 11, 14, 18, 21} <= set(losses(unbroken, "train"))
    assert result(unbroken)["data"]["iterations_in_epoch"] > 0, "the last checkpoint stands within an epoch"


def stopped_at(update: int, words: list[str], log: Path) -> int:
    """Runs a command until it has saved at an update, then halts it; returns its process group."""
    run = start(words, log)
    with log.open("rb") as file:
        line = b""
        while f"@ {update} updates, score".encode() not in line:
            assert line or run.poll() is None, log.read_text()
            line = file.readline()
    os.killpg(run.pid, signal.SIGSTOP)
    return run.pid


def test_killed_at_any_moment(folder: Path, corpora: str, unbroken: Path) -> None:
    """In its first write, in a copy of a later one, and between two; while another run is refused."""
    save_dir, log = folder / "killed", folder / "killed.log"
    words, faults = command(corpora, save_dir), str(ROOT / "tests" / "faults")
    # The files, as they are written: best, last after the 4 updates of epoch 1; 2_5, best, last at update 5
    for number, name, update in (("1", "best", None), ("5", "last", 4)):
        status, output = train(words, log, PYTHONPATH=faults, KILL_AT=number)
        assert status == -signal.SIGKILL, output  # the script has become the training
        assert [path.name for path in save_dir.glob(".*.part")] == [f".checkpoint_{name}.pt.part"]
        whole = {path.name: updates(path) for path in save_dir.glob("*.pt")}
        assert whole.get("checkpoint_last.pt") == update
    group = stopped_at(15, words, log)
    try:
        status, output = train(words, folder / "second.log")
        assert status == 1
        assert said(output).startswith(f"pretrain: another run trains into {save_dir} (process ")
    finally:
        os.killpg(group, signal.SIGKILL)
        os.waitpid(group, 0)
    status, output = train(words, log)
    assert status == 0, output
    assert f"Loaded checkpoint {save_dir}/checkpoint_last.pt (epoch 5 @ 15 updates)" in output
    assert_same(save_dir, unbroken)


def test_a_finished_run_changes_nothing(folder: Path, corpora: str, unbroken: Path) -> None:
    def files() -> dict[Path, tuple[int, bytes]]:
        paths = [path for path in unbroken.rglob("*") if path.is_file() and path.name != ".lock"]
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}

    before = files()
    status, output = train(command(corpora, unbroken), folder / "again.log")
    assert status == 0
    assert said(output).endswith(
        f"{unbroken} is finished: {UPDATES} updates of --max-update {UPDATES}; nothing was changed"
    )
    assert files() == before


def test_a_damaged_checkpoint_and_a_full_disk(folder: Path, corpora: str, unbroken: Path) -> None:
    """The newest file cut off, a byte of the best one changed: on from update 20, until no file can grow."""
    save_dir, log = folder / "damaged", folder / "damaged.log"
    shutil.copytree(unbroken, save_dir)
    last, best, whole = (save_dir / f"checkpoint_{name}.pt" for name in ("last", "best", "6_20"))
    last.write_bytes(last.read_bytes()[:-1000])
    content = bytearray(best.read_bytes())
    content[len(content) // 2] ^= 1
    best.write_bytes(content)
    words = command(corpora, save_dir)
    small_files = ["bash", "-c", 'ulimit -f 64 && exec "$@"', "bash", *words]
    before = {path.name: path.read_bytes() for path in save_dir.glob("*.pt")}
    status, output = train(small_files, log)
    assert (
        f"{last} cannot be used (it was cut off, or is no checkpoint); going on from {whole} (update 20)"
        in output
    )
    assert status == 1
    assert said(output).startswith(f"pretrain: {save_dir}/checkpoint_")
    assert f"the last good checkpoint is {whole} (update 20); make room and give the same" in said(output)
    assert {path.name: path.read_bytes() for path in save_dir.iterdir() if ".pt" in path.name} == before
    status, output = train(words, log)
    assert status == 0, output
    assert_same(save_dir, unbroken)


def test_numbers_that_are_no_longer_finite(folder: Path, corpora: str) -> None:
    """A rate of 1e30 makes update 2 huge, and update 3 overflows."""
    save_dir = folder / "nan"
    words = command(corpora, save_dir, lr="1e30", clip_norm="0", save_interval_updates="1")
    words.remove("--no-position-logs")  # a picture of such weights must not end the run first
    status, output = train(words, folder / "nan.log")
    assert status == 1
    assert said(output) == (
        "pretrain: update 3 failed: gradients are Nan/Inf; the last good checkpoint is "
        f"{save_dir}/checkpoint_last.pt (update 2), from which the same command goes on; give it with a "
        "smaller --lr or --clip-norm, or more --warmup-updates"
    )
