"""Importing the package: quiet, and logging stays as the user has it."""

from __future__ import annotations

from pathlib import Path

from commands import run

# No handler, so that fairseq's import would add one; a level and a threshold that nobody sets by accident.
CODE = """
import logging
root = logging.getLogger()
root.setLevel(35)
logging.disable(7)
import tupe_fairseq
print(root.level, root.handlers, root.manager.disable)
"""


def test_importing_leaves_logging_alone_and_prints_nothing(root: Path, tmp_path: Path) -> None:
    assert run("python", "-c", CODE, cwd=tmp_path, PYTHONPATH=str(root)) == "35 [] 7\n"
