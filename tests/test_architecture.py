"""The map of the package, read from its imports: the core is torch only, and arrows run one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "tupe_fairseq"


def imports(path: Path) -> tuple[set[str], set[str]]:
    """The modules of this package that a file imports, and the top-level packages.

    What stands under ``if __name__ == "__main__"`` counts as a command, which is not there for importers.
    """
    inner, outer = set(), set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'")
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                inner |= {node.module} if node.module else {alias.name for alias in node.names}
            else:
                outer.add(node.module.split(".")[0])
        elif isinstance(node, ast.Import):
            outer |= {alias.name.split(".")[0] for alias in node.names}
    return inner, outer - set(sys.stdlib_module_names) - {"__future__"}


def table() -> dict[str, list[str]]:
    """The table of modules in CONTRIBUTING.md: what they need, and their names in order."""
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (torch alone|no fairseq|transformers|fairseq) \| (.*) \|$", text, re.MULTILINE)
    return {needs: re.findall(r"`(\w+)`", modules) for needs, modules in rows}


TABLE = table()
ORDER = [name for modules in TABLE.values() for name in modules]
MODULES = {path.stem: imports(path) for path in sorted(PACKAGE.glob("*.py"))}


@pytest.mark.parametrize("name", MODULES)
def test_the_package_never_imports_itself_by_name(name: str) -> None:
    """So that it works through a link or a copy with another name."""
    assert PACKAGE.name not in MODULES[name][1]


def test_the_table_has_every_module_once() -> None:
    assert sorted(ORDER) == sorted(MODULES.keys() - {"__init__"})


@pytest.mark.parametrize("name", ORDER)
def test_a_module_imports_only_what_stands_before_it(name: str) -> None:
    assert MODULES[name][0] <= set(ORDER[: ORDER.index(name)])


@pytest.mark.parametrize("name", TABLE["torch alone"])
def test_the_core_is_torch_only(name: str) -> None:
    assert MODULES[name][1] <= {"torch"}


@pytest.mark.parametrize("name", [*TABLE["no fairseq"], *TABLE["transformers"]])
def test_what_does_without_fairseq(name: str) -> None:
    assert not MODULES[name][1] & {"fairseq", "omegaconf", "fairseq_cli"}


@pytest.mark.parametrize("name", sorted({*ORDER} - {*TABLE["transformers"], "export_hf", "benchmark_peers"}))
def test_what_does_without_transformers(name: str) -> None:
    assert not MODULES[name][1] & {"transformers", "tokenizers"}


def test_the_table_of_glue_needs_the_standard_library_only() -> None:
    assert MODULES["glue"] == ({"glue_task"}, set())
    assert MODULES["glue_task"] == (set(), {"tomli"})  # the standard library's tomllib before Python 3.11


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
