"""What long work says of itself."""

from __future__ import annotations

import pytest

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
