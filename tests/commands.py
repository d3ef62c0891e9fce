"""Commands as a user runs them, in the environment that runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def attempt(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, well or not; ``stdout`` holds all that it prints, errors too."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "PATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Runs a command that must succeed; returns what it prints, errors too."""
    result = attempt(*command, cwd=cwd, **environment)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout[-4000:]}"
    return result.stdout
