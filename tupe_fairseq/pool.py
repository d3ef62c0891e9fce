"""A function over many items in processes: results in order, few items under way, nothing left behind.

`concurrent.futures` would do but for large results: when a worker is killed that has written a part of one,
it waits for the rest for ever.
"""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """Processes that `start_workers` started."""

    def __init__(self, ends: list[Connection]) -> None:
        """ends: each leads to a process; none, where the caller does the work."""
        self._ends = ends

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The results in the order of the items, which the processes take in turn, one at a time.

        Raises what the function raises, and ChildProcessError if a worker is killed.
        """
        if not self._ends:
            yield from map(function, items)
            return
        idle, busy = deque(self._ends), deque[Connection]()
        for item in items:
            if idle:
                busy.append(idle.popleft())
                _send(busy[-1], (function, item))
            else:
                result = _receive(busy[0])
                _send(busy[0], (function, item))
                busy.rotate(-1)
                yield result
        while busy:
            yield _receive(busy.popleft())


@contextmanager
def start_workers(number: int) -> Iterator[Workers]:
    """So many processes, or none for 1: then the caller does the work. They end with the block.

    with start_workers(4) as workers:
        for result in workers.map(function, items):
    """
    ends: list[Connection] = []
    processes: list[Process] = []
    try:
        with _signals_wait():
            for _ in range(number if number > 1 else 0):
                ours, theirs = Pipe()
                ends.append(ours)
                process = Process(target=_work, args=(theirs, ends), daemon=True)
                process.start()
                processes.append(process)
                theirs.close()  # so that ours ends when the process does
        yield Workers(ends)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for end in ends:
            end.close()


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Signals are handled after the block: around a fork, Python ignores what their handlers raise, and a new
    process has no handlers of its own yet."""
    caught: list[int] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            if callable(signal.getsignal(number)):
                handlers[number] = signal.signal(number, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for number in caught:
        signal.raise_signal(number)


def _work(end: Connection, others: list[Connection]) -> None:
    """What a process does until its parent ends, or kills it.

    others: the parent's ends. Copies of them would keep this process from seeing the parent's end.
    """
    for number in (signal.SIGINT, signal.SIGHUP):  # of the whole terminal; the parent alone acts on them
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()
    with suppress(EOFError, OSError):  # the parent's end
        while True:
            function, item = end.recv()
            try:
                result = function(item)
            except Exception as error:
                end.send((None, error))
            else:
                end.send((result, None))


def _send(end: Connection, work: Any) -> None:
    with _death_is_told():
        end.send(work)


def _receive(end: Connection) -> Any:
    with _death_is_told():
        result, error = end.recv()
    if error is not None:
        raise error
    return result


@contextmanager
def _death_is_told() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError):  # the other end is gone, perhaps in the middle of a result
        raise ChildProcessError(
            "a worker was killed, perhaps for want of memory; try fewer --workers"
        ) from None
