"""Where and with what a benchmark was run."""

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


def circumstances() -> dict[str, Any]:
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
            "system": f"{platform.system()} {platform.machine()}",
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()
