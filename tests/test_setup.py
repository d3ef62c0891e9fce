"""scripts/setup.sh: what it says when something is missing, with stand-ins for Python and pip."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from commands import started


def stand_in(path: Path, script: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def python(path: Path, version: str, pip: str = "exit 0") -> Path:
    """An interpreter that knows its version, and runs ``pip`` as given; everything else succeeds."""
    script = f'case "$*" in *version_info*) echo {version} ;; *pip*install*) {pip} ;; *) exit 0 ;; esac'
    return stand_in(path, script)


def setup(root: Path, folder: Path, **environment: str | Path) -> subprocess.CompletedProcess:
    env = {"VENV": str(folder / "venv"), **{name: str(value) for name, value in environment.items()}}
    return subprocess.run(
        ["bash", str(root / "scripts" / "setup.sh")],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )


def last_line(result: subprocess.CompletedProcess) -> str:
    assert result.returncode == 1
    return result.stderr.strip().splitlines()[-1]


def test_no_such_interpreter(root: Path, tmp_path: Path) -> None:
    message = last_line(setup(root, tmp_path, PYTHON=tmp_path / "none"))
    assert message.startswith("setup: no Python runs as")
    assert "PYTHON=" in message


def test_too_old_an_interpreter(root: Path, tmp_path: Path) -> None:
    message = last_line(setup(root, tmp_path, PYTHON=python(tmp_path / "python", "3.8")))
    assert message == "setup: Python 3.8 is too old; name 3.9 or newer with PYTHON=, best 3.11"


def test_no_compiler_where_one_is_needed(root: Path, tmp_path: Path) -> None:
    tools = tmp_path / "tools"  # all that the script needs, and no c++
    tools.mkdir()
    for name in ("bash", "dirname", "basename", "uname", "cat", "cksum"):
        (tools / name).symlink_to(f"/usr/bin/{name}" if Path(f"/usr/bin/{name}").exists() else f"/bin/{name}")
    interpreter = python(tmp_path / "python", "3.13")
    message = last_line(setup(root, tmp_path, PYTHON=interpreter, PATH=tools))
    assert "no wheel for Python 3.13" in message
    assert "install a C++ compiler" in message


@pytest.mark.parametrize(
    "pip_says, sentence",
    [
        ("NewConnectionError: failed to establish", "the package index cannot be reached; check the network"),
        ("ERROR: Could not find a version that satisfies", "the package index has no version for this host"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("something else", "the whole output is in"),
    ],
)
def test_failures_of_pip_are_explained(root: Path, tmp_path: Path, pip_says: str, sentence: str) -> None:
    pip = f'echo "{pip_says}"; exit 1'
    python(tmp_path / "venv" / "bin" / "python", "3.11", pip)
    result = setup(root, tmp_path, PYTHON=python(tmp_path / "python", "3.11"))
    assert sentence in last_line(result)
    assert pip_says in result.stderr, "pip's own last lines are shown"
    assert "failed" in result.stdout
    assert not (tmp_path / "venv" / ".tupe-setup").exists()


def test_a_second_call_does_nothing(root: Path, tmp_path: Path) -> None:
    log = tmp_path / "pip.log"
    python(tmp_path / "venv" / "bin" / "python", "3.11", f'echo "$*" >> "{log}"')
    interpreter = python(tmp_path / "python", "3.11")
    first, second = (setup(root, tmp_path, PYTHON=interpreter) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr
    assert "[1/3] PyTorch" in first.stdout
    assert second.stdout == f"{tmp_path / 'venv'} is set up (Python 3.11)\n"
    installs = log.read_text().splitlines()
    assert len(installs) == 3
    assert all(str(root / "constraints.txt") in line for line in installs)


def test_an_environment_of_another_python_is_left_alone(root: Path, tmp_path: Path) -> None:
    python(tmp_path / "venv" / "bin" / "python", "3.10")
    message = last_line(setup(root, tmp_path, PYTHON=python(tmp_path / "python", "3.11")))
    assert "holds another Python than 3.11" in message


def test_arguments_are_refused(root: Path) -> None:
    result = subprocess.run(
        ["bash", str(root / "scripts" / "setup.sh"), "python3.12"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "takes no arguments" in last_line(result)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_ends_the_step(root: Path, tmp_path: Path, name: str) -> None:
    number, fifo, said = getattr(signal, name), tmp_path / "fifo", tmp_path / "said"
    os.mkfifo(fifo)
    os.mkfifo(said)
    pip = python(tmp_path / "python", "3.11", f"exec 9> {said}; echo $$ >&9; exec cat {fifo}")
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").symlink_to(pip)
    environment = {**os.environ, "VENV": str(tmp_path / "venv"), "PYTHON": str(pip)}
    with (
        started(args=["bash", str(root / "scripts/setup.sh")], env=environment) as process,
        said.open() as reader,
    ):
        step = int(reader.readline())
        try:
            process.send_signal(number)
            assert process.wait(60) == -number
            assert select.select([reader], [], [], 60)[0], "the step has not ended"
        finally:
            with suppress(ProcessLookupError):
                os.kill(step, signal.SIGKILL)
