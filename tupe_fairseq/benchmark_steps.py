"""Time and memory of steps of training, measured in a process of its own.

    python -m tupe_fairseq.benchmark_steps JSON

JSON is an object with "measure", one of MEASURES, and its arguments; the last line printed is what was
measured, as JSON. The process is a fresh one, because memory that a model gave back may still count.
"""

from __future__ import annotations

import json
import re
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .benchmark_loading import load_batches
from .benchmark_peers import FLOOR, build, optimizer
from .benchmark_work import PARTS, Step, Work

STATUS = Path("/proc/self/status")  # Linux; elsewhere getrusage tells, and nothing is limited
TINY: dict[str, Any] = {"batch": 1, "length": 16, "layers": 1, "width": 64, "vocab": 100}
MEMORY_STEPS = 3  # the first makes the state of the optimizer, the second is the first with all that stays


def time_steps(peers: Sequence[str], work: Work, rounds: int, steps: int) -> dict[str, Any]:
    """Seconds of each part of a step, of peers that take turns: in every round each makes ``steps`` steps.

    The order moves on by one from round to round. A round before the first is not counted.

    Returns:
        {"seconds": {peer: {part: one number, the mean of a turn, for each round}}, "left_out": {peer: why},
        "optimizer": {peer: its name}}
    """
    models, left_out = {}, {}
    for name in peers:
        try:
            models[name] = build(name, work)
        except ModuleNotFoundError as error:
            left_out[name] = f"{error.name} is not installed"
    names = list(models)
    seconds: dict[str, dict[str, list[float]]] = {name: {part: [] for part in models[name]} for name in names}
    for number in range(rounds + 1):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            turn = [_step(models[name], work.device) for _ in range(steps)]
            if number:
                for part, times in seconds[name].items():
                    times.append(sum(one[part] for one in turn) / steps)
    return {
        "seconds": seconds,
        "left_out": left_out,
        "optimizer": {n: optimizer(n) for n in names if n != FLOOR},
    }


def _step(step: Step, device: str) -> dict[str, float]:
    """Does a step; returns the seconds of its parts."""
    seconds = {}
    for part in PARTS:
        if part in step:
            _wait(device)
            started = time.perf_counter()
            step[part]()
            _wait(device)
            seconds[part] = time.perf_counter() - started
    return seconds


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def peak_memory(peer: str, work: Work) -> dict[str, Any]:
    """Peak memory of a process that trains one peer, and the seconds of its fastest step.

    On the CPU, the peak of what lies in memory less what was there after the same steps of a tiny model; so
    libraries and code do not count, but all else does: weights, gradients, state of the optimizer,
    activations, buffers of the products, and what the allocator holds back. On a GPU, what torch allocated.

    Returns:
        {"bytes": ..., "seconds": ...}, or {"left_out": why}
    """
    try:
        _train(peer, replace(work, **TINY))
    except ModuleNotFoundError as error:
        return {"left_out": f"{error.name} is not installed"}
    before = _resident("VmRSS")
    free = _limit_memory() if work.device == "cpu" else 0
    try:
        seconds = _train(peer, work)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "allocate memory" not in str(
            error
        ):
            raise
        return {"left_out": f"needs more than the {free / 1e9:.1f} GB that are free" if free else "no memory"}
    peak = torch.cuda.max_memory_allocated() if work.device == "cuda" else _resident("VmHWM") - before
    return {"bytes": peak, "seconds": min(seconds[1:])}


def _train(peer: str, work: Work) -> list[float]:
    """Seconds of the first steps of a fresh model."""
    step = build(peer, work)
    return [sum(_step(step, work.device).values()) for _ in range(MEMORY_STEPS)]


def _resident(field: str) -> int:
    """Bytes in memory: VmRSS now, VmHWM at their peak, VmData those of this process's own that it may write.

    getrusage's peak may be that of the process which started this one; it serves where there is no other.
    """
    if STATUS.exists():
        return 1024 * int(re.findall(rf"{field}:\s+(\d+)", STATUS.read_text())[0])
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _limit_memory() -> int:
    """Limits this process to the memory that is free: too large a model fails, rather than the machine.

    Returns that memory in bytes; 0 where it is not known.
    """
    known = Path("/proc/meminfo")
    if not known.exists():
        return 0
    free = 1024 * int(re.findall(r"MemAvailable:\s+(\d+)", known.read_text())[0])
    limit = _resident("VmData") + free
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    return free


MEASURES: dict[str, Callable[..., dict[str, Any]]] = {
    "time_steps": time_steps,
    "peak_memory": peak_memory,
    "load_batches": load_batches,
}


def main() -> None:
    """Measures what the argument asks for; see the module's text."""
    wanted = json.loads(sys.argv[1])
    if "work" in wanted:
        wanted["work"] = Work(**wanted["work"])
    result = MEASURES[wanted.pop("measure")](**wanted)
    print(json.dumps({**result, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
