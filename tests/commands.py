"""Commands as a user runs them, in the environment that runs the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def started(**options: object) -> Iterator[subprocess.Popen[str]]:
    """A process with its own group, all of which has ended afterwards, also where a test fails."""
    common = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
    with subprocess.Popen(**{**common, **options}) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Runs a command that must succeed; returns what it prints, errors too."""
    result = attempt(*command, cwd=cwd, **environment)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout[-4000:]}"
    return result.stdout
