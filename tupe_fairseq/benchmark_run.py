"""The commands of a benchmark, and where and with what it was run."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = ("torch", "fairseq", "ve-fairseq", "fairseq-fixed", "numpy", "sentencepiece", "transformers")


def start(*words: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a command; the environment is added to that of this process."""
    both = {**os.environ, **environment}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=both)


def finish(*processes: Any) -> list[str]:
    """Waits for all commands; returns what each printed.

    Raises:
        ChildProcessError: one failed.
    """
    printed = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, printed):
        if process.returncode:
            raise ChildProcessError(complaint(shlex.join(process.args)[:100], process.returncode, errors))
    return [output for output, _ in printed]


def complaint(name: str, status: int, said: str) -> str:
    """One sentence on a command that failed, with the last of what it said."""
    last = (said.strip() or "nothing; perhaps it was killed for want of memory").splitlines()[-1]
    return f"{name} ended with status {status} and said last: {last}"


def circumstances(threads: int, gpu: bool) -> dict[str, Any]:
    """Command, commit, versions, machine and date of a run."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False
    )
    versions = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": shlex.join(["bash", "scripts/benchmark.sh", *sys.argv[1:]]),
        "commit": (commit.stdout.strip() or "unknown") + (", with changes" if changed.stdout.strip() else ""),
        "date": time.strftime("%Y-%m-%d"),
        "versions": versions,
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": threads,
            "system": f"{platform.system()} {platform.machine()}",
            "gpu": torch.cuda.get_device_name() if gpu else None,
        },
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()
