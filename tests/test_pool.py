"""Work in processes: in order, a little at a time, and nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tupe_fairseq.pool import start_workers


def square(number: int) -> int:
    return number**2


def fail(number: int) -> int:
    raise ValueError(f"{number} is refused")


def large(number: int) -> bytes:
    """MiB, more than a pipe holds."""
    return bytes(number << 20)


def signalled(number: int) -> int:
    signal.raise_signal(number)
    return number


def pid(_: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("items", [0, 1, 50])
def test_results_come_in_order(number: int, items: int) -> None:
    with start_workers(number) as workers:
        assert list(workers.map(square, range(items))) == [i**2 for i in range(items)]
        assert list(workers.map(square, range(3))) == [0, 1, 4], "and again"


def test_one_works_where_it_is() -> None:
    with start_workers(1) as workers:
        assert set(workers.map(pid, range(3))) == {os.getpid()}
    with start_workers(2) as workers:
        assert os.getpid() not in set(workers.map(pid, range(3)))


@pytest.mark.parametrize("number", [1, 2])
def test_few_items_are_taken_ahead(number: int) -> None:
    taken = []

    def items() -> Iterator[int]:
        for i in range(100):
            taken.append(i)
            yield i

    with start_workers(number) as workers:
        for done, _ in enumerate(workers.map(square, items()), start=1):
            assert len(taken) - done <= number


@pytest.mark.parametrize("number", [1, 2])
def test_errors_come_through(number: int) -> None:
    with pytest.raises(ValueError, match="3 is refused"), start_workers(number) as workers:
        list(workers.map(fail, [3, 4]))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_worker_is_told(number: int) -> None:
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as corpus.main does
    try:
        with pytest.raises(ChildProcessError, match="try fewer --workers"), start_workers(2) as workers:
            list(workers.map(signalled, [number] * 9))
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert not multiprocessing.active_children()


def test_a_worker_killed_amid_a_result_is_told() -> None:
    with start_workers(2) as workers:
        results = workers.map(large, [20, 20])
        assert len(next(results)) == 20 << 20
        assert workers._ends[1].poll(60), "the other worker has begun to write"
        for process in multiprocessing.active_children():
            process.kill()
            process.join()
        with pytest.raises(ChildProcessError, match="try fewer --workers"):
            next(results)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_processes_start_comes_after(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A handler that raises while Python forks is ignored, with a message; then Ctrl-C would be lost."""

    def begin(process: multiprocessing.Process) -> None:
        start(process)
        signal.raise_signal(number)

    start = multiprocessing.Process.start
    monkeypatch.setattr(multiprocessing.Process, "start", begin)
    handler = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), start_workers(3):
            pytest.fail("the signal is forgotten")
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, handler)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_workers_leave_interrupts_to_the_parent(number: int) -> None:
    with start_workers(2) as workers:
        assert list(workers.map(signalled, [number] * 3)) == [number] * 3


@pytest.mark.slow
@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_every_way_to_start_a_process_will_do(method: str) -> None:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(method, force=True)
    try:
        with start_workers(2) as workers:
            assert list(workers.map(abs, [-1, 2, -3])) == [1, 2, 3]
    finally:
        multiprocessing.set_start_method(before, force=True)


PARENT = """
import os, sys
from tupe_fairseq.pool import start_workers
held = int(sys.argv[1])  # every process of this group holds it until its end
with start_workers(3) as workers:
    list(workers.map(abs, range(9)))
    os.write(held, b"x")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_no_worker_outlives_a_killed_parent(root: Path) -> None:
    end, held = os.pipe()
    command = [sys.executable, "-c", PARENT, str(held)]
    killed = subprocess.run(
        command, pass_fds=[held], env={**os.environ, "PYTHONPATH": str(root)}, check=False
    )
    os.close(held)
    assert killed.returncode == -signal.SIGKILL
    assert os.read(end, 1) == b"x"
    assert select.select([end], [], [], 60)[0], "a worker still holds the pipe"
    assert os.read(end, 1) == b""
    os.close(end)
