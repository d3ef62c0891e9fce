"""What long work says of itself."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import tiny_corpus
import tiny_run

from tupe_fairseq import progress
from tupe_fairseq.progress import Stage


class Clock:
    """Stands for the module `time`."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_a_line_now_and_then_and_one_at_the_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Stage("cleaning") as stage:
        for second in range(1, 26):
            clock.now = 100 + second
            stage.bytes += 100_000_000
            stage.tell()
    assert capsys.readouterr().out.splitlines() == [
        "cleaning: 1,000.0 MB in 10.0 s, 100.0 MB/s",
        "cleaning: 2,000.0 MB in 20.0 s, 100.0 MB/s",
        "cleaning: 2,500.0 MB in 25.0 s, 100.0 MB/s",
    ]
    assert stage.figures() == {"bytes": 2_500_000_000, "seconds": 25.0, "mb_per_second": 100.0}


def test_no_time_is_no_error(clock: Clock) -> None:
    with Stage("cleaning") as stage:
        pass
    assert stage.figures() == {"bytes": 0, "seconds": 0.0, "mb_per_second": 0.0}


def test_an_error_is_no_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="full"), Stage("cleaning"):
        raise OSError("full")
    assert not capsys.readouterr().out


def in_terminal(*words: object, out: Path | None = None) -> str:
    """What a command shows in a terminal of 200 columns; its stdout may go to a file."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 200, 0, 0))
    command = list(map(str, words))
    with (out or Path(os.devnull)).open("wb") as file:
        stdout = file if out else theirs
        process = subprocess.Popen(command, stdin=theirs, stdout=stdout, stderr=theirs, env=ENVIRONMENT)
    os.close(theirs)
    shown = bytearray()
    try:
        while block := os.read(ours, 1 << 16):
            shown += block
    except OSError:  # Linux: the other side has been closed
        pass
    os.close(ours)
    assert process.wait() == 0, shown.decode()
    return shown.decode()


ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "ARCH": "tupe_r_tiny", "PYTHONPATH": str(tiny_run.ROOT)}


@pytest.mark.slow
def test_a_terminal_shows_a_bar_and_a_file_gets_lines(tmp_path: Path) -> None:
    corpora = tiny_run.make_corpora(tmp_path)
    words = tiny_run.command(corpora, tmp_path / "run", max_update="14")
    place = words.index("--log-format")
    del words[place : place + 2]
    shown = in_terminal(*words)
    assert "epoch 001:   0%|" in shown and "it/s" in shown
    assert "| train_inner |" not in shown
    assert not re.search(r"it/s[^\r\n]*] *20", shown), "a line of the log stands behind a bar"
    log = tmp_path / "log"
    words[3] = str(tmp_path / "again")
    shown = in_terminal(*words, out=log)
    assert "it/s" not in shown
    assert "| train_inner |" in log.read_text(encoding="utf-8")


def test_preparation_shows_a_bar_in_a_terminal(tmp_path: Path) -> None:
    text = tiny_corpus.written(tmp_path / "text", tiny_corpus.TWENTY)
    words = [sys.executable, "-m", "tupe_fairseq.corpus", "-o", tmp_path / "corpus", "-v", "60", text]
    shown = in_terminal(*words)
    assert "cleaning:   0%|" in shown and "encoding:   0%|" in shown
    assert "cleaning: 0.0 MB in" in shown, "and the line at the end"
