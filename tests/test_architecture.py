"""The map of the package, read from its imports: the core is torch only, and arrows run one way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "tupe_fairseq"
TORCH_ONLY = {"positional", "attention", "encoder"}
NO_FAIRSEQ = TORCH_ONLY | {
    *("vocabulary", "token_file", "cleaning", "splitting", "encoding", "corpus_report", "corpus"),
    *("glue", "glue_data", "checkpoints", "word_order"),
}


def imports(path: Path) -> tuple[set[str], set[str]]:
    """The modules of this package that a file imports, and the top-level packages."""
    inner, outer = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                inner |= {node.module} if node.module else {alias.name for alias in node.names}
            else:
                outer.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            outer |= {alias.name.split(".")[0] for alias in node.names}
    return inner, outer - set(sys.stdlib_module_names) - {"__future__"}


MODULES = {path.stem: imports(path) for path in sorted(PACKAGE.glob("*.py"))}


@pytest.mark.parametrize("name", MODULES)
def test_the_package_never_imports_itself_by_name(name: str) -> None:
    """So that it works through a link or a copy with another name."""
    assert PACKAGE.name not in MODULES[name][1]


@pytest.mark.parametrize("name", sorted(TORCH_ONLY))
def test_the_core_is_torch_only(name: str) -> None:
    inner, outer = MODULES[name]
    assert outer == {"torch"}
    assert inner <= TORCH_ONLY


@pytest.mark.parametrize("name", sorted(NO_FAIRSEQ))
def test_what_does_without_fairseq(name: str) -> None:
    seen, todo = set(), {name}
    while todo:
        module = todo.pop()
        seen.add(module)
        assert not MODULES[module][1] & {"fairseq", "omegaconf", "fairseq_cli"}, module
        todo |= MODULES[module][0] - seen


def test_imports_make_no_circle() -> None:
    done: set[str] = {"__init__"}
    while len(done) < len(MODULES):
        ready = {name for name, (inner, _) in MODULES.items() if name not in done and inner <= done}
        assert ready, f"these import each other: {sorted(MODULES.keys() - done)}"
        done |= ready


def test_the_core_imports_with_no_fairseq_installed() -> None:
    """A finder that hides fairseq stands for an environment that lacks it."""
    code = f"""
import sys
sys.path.insert(0, {str(PACKAGE.parent)!r})
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: None if name == "fairseq" else real(name, *args)
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("fairseq", "omegaconf", "hydra"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hide())
from tupe_fairseq.encoder import EncoderConfig, TupeEncoder
from tupe_fairseq import attention, positional
assert "fairseq" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
