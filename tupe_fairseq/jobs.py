"""Commands side by side, one a slot, none of which outlives the process that started them."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INTERVAL = 0.2  # seconds between two looks at what has ended
PATIENCE = 10  # seconds for a killed process to end; one that has left its group is not waited for longer
STARTED = "== "  # in front of the command, at the start of its output in a log
# The command, in a group of processes that dies with whoever holds the other end of stdin, however he ends.
_GUARDED = """{ trap "" TERM INT HUP; cat; kill -KILL 0; } <&0 >/dev/null 2>&1 & exec "$@" </dev/null"""


@dataclass(frozen=True)
class Job:
    """A command, and where all that it prints goes; a log that exists is continued."""

    command: Sequence[str]
    log: Path


@dataclass(frozen=True)
class Ended:
    """A job that came to its end by itself."""

    job: Job
    status: int  # 0 where all went well; -n where signal n ended it
    seconds: float


class _Running:
    """A job in its slot, as the leader of a group of processes."""

    def __init__(self, job: Job, slot: Mapping[str, str], descriptors: Sequence[int]) -> None:
        self.job, self.slot, self.begun = job, slot, time.monotonic()
        job.log.parent.mkdir(parents=True, exist_ok=True)
        self.alive, held = os.pipe()  # at its end when nobody holds the other side any more
        with job.log.open("ab") as log, open(held, "wb"):  # noqa: PTH123 (a descriptor has no path)
            log.write(f"{STARTED}{shlex.join(job.command)}\n".encode())
            log.flush()
            self.process = subprocess.Popen(
                ["bash", "-c", _GUARDED, "bash", *job.command],
                env={**os.environ, **slot},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(*descriptors, held),
            )

    def end(self) -> None:
        """Ends the whole group, which is there as long as its guard, and waits until all of it has ended."""
        with suppress(ProcessLookupError, PermissionError):  # none is left; the latter on macOS
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        select.select([self.alive], [], [], PATIENCE)
        os.close(self.alive)
        if self.process.stdin:
            self.process.stdin.close()


def run_jobs(
    jobs: Iterable[Job], slots: Sequence[Mapping[str, str]], stop: Sequence[Any], descriptors: Sequence[int]
) -> Generator[Ended, None, None]:
    """Runs all jobs, as many at a time as there are slots, and yields each when it has ended.

    Whatever ends this generator (an error, its `close`, or something in `stop`) ends the jobs, too.

    Args:
        slots: what is added to the environment of a job in that slot, such as the name of a GPU.
        stop: something that a handler of signals may fill.
        descriptors: open files that the jobs inherit, such as a lock that is to last until all have ended.
    """
    waiting, free = deque(jobs), deque(slots)
    running: list[_Running] = []
    try:
        while (waiting or running) and not stop:
            while waiting and free:
                running.append(_Running(waiting.popleft(), free.popleft(), descriptors))
            time.sleep(INTERVAL)
            for one in [one for one in running if one.process.poll() is not None]:
                seconds = time.monotonic() - one.begun
                one.end()
                running.remove(one)
                free.append(one.slot)
                yield Ended(one.job, one.process.returncode, seconds)
    finally:
        for one in running:
            one.end()


def catch_signals() -> list[int]:
    """Makes SIGINT, SIGTERM and SIGHUP fill the list that is returned, unless (nohup) they are ignored."""
    caught: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: caught.append(number))
    return caught


def gpu_slots(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """A slot for each GPU, those of CUDA_VISIBLE_DEVICES or all of this machine; on the CPU, one slot."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        gpus = [str(i) for i in range(_count_gpus())]
    else:
        gpus = [gpu.strip() for gpu in named.split(",") if gpu.strip() not in ("", "-1")]
    return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus] or [{}]


def _count_gpus() -> int:
    """Those that nvidia-smi lists, a line each; lines of their parts are indented."""
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
