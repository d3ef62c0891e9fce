"""Importing the package: quiet, and logging stays as the user has it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
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


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info < (3, 10), reason="sys.orig_argv is new in 3.10")
@pytest.mark.parametrize("command", ["corpus", "glue_data", "word_order"])
def test_commands_for_text_do_without_fairseq(root: Path, tmp_path: Path, command: str) -> None:
    flags = ("-X", "importtime", "-m", f"tupe_fairseq.{command}", "-h")
    imported = run("python", *flags, cwd=tmp_path, PYTHONPATH=str(root))
    assert f"usage: python -m tupe_fairseq.{command}" in imported
    names = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert "numpy" in names or command == "word_order"
    assert not names & {"fairseq", "torch"}


@pytest.mark.slow
def test_other_commands_register(root: Path, tmp_path: Path) -> None:
    """Also where they get the name of such a command as a file's."""
    (tmp_path / "show.py").write_text("import tupe_fairseq.corpus, sys; print('fairseq' in sys.modules)")
    for script in (["show.py"], ["-m", "show"], ["-m", "show", "tupe_fairseq.corpus"]):
        path = f"{root}{os.pathsep}{tmp_path}"
        assert run("python", *script, cwd=tmp_path, PYTHONPATH=path) == "True\n"
