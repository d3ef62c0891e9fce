"""The README says what the code does: its tables, links and flags are read here."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from fairseq.options import get_training_parser, parse_args_and_arch

from tupe_fairseq.config import SIZES, TupeConfig, architectures
from tupe_fairseq.glue import TASKS
from tupe_fairseq.model import TupeModel
from tupe_fairseq.positional import reset_cls
from tupe_fairseq.variants import VARIANTS

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "ATTRIBUTION.md",
    "data/README.md",
    "docs/thetas.md",
    "docs/reliability.md",
)


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


def count_parameters(architecture: str) -> int:
    args = Namespace()
    architectures()[architecture](args)
    with torch.device("meta"):
        model = TupeModel(TupeConfig(max_positions=512, **vars(args)), 32_769, padding_idx=1)
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("variant", VARIANTS)
def test_table_of_variants(readme: str, variant: str) -> None:
    counts = [f"{count_parameters(f'{variant}_{size}'):,}" for size in SIZES]
    assert f"| `{variant}` | {VARIANTS[variant].equation} | {' | '.join(counts)} |" in readme


@pytest.mark.parametrize("size", SIZES)
def test_table_of_sizes(readme: str, size: str) -> None:
    names = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads")
    cells = [size, *(SIZES[size][f"encoder_{name}"] for name in names)]
    assert f"| {' | '.join(map(str, cells))} |" in readme


@pytest.mark.parametrize("name", TASKS)
def test_table_of_glue(readme: str, name: str) -> None:
    task = TASKS[name]
    labels = ", ".join(task.labels) or f"a number from 0 to {task.label_scale:g}"
    cells = [
        *(name, {1: "one", 2: "two"}[len(task.inputs)], labels),
        ", ".join(task.metrics) or f"read by a model of {task.model}",
        str(task.epochs or ""),
        ", ".join(split.submission for split in task.splits.values() if split.submission),
    ]
    assert f"| {' | '.join(cells)} |".replace("|  |", "| |") in readme


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_positions_of_the_recipes(readme: str, root: Path, size: str) -> None:
    tokens = re.search(
        r"^--tokens-per-sample (\d+)", (root / f"configs/{size}.args").read_text(), re.MULTILINE
    )
    assert tokens
    text = " ".join(readme.split())
    assert f"{tokens[1]} in the {size} recipe" in text or f"{tokens[1]} in {size}" in text


def test_rates_and_seeds_of_a_sweep(readme: str, root: Path) -> None:
    """The script's defaults, its usage and the README."""
    script = (root / "scripts/sweep_glue.sh").read_text()
    rates, seeds = (re.search(rf'{name}:-([^}}]+)}}"', script) for name in ("RATES", "SEEDS"))
    assert rates and seeds
    assert f'[RATES="{rates[1]}"] [SEEDS="{seeds[1]}"]' in script
    *most, last = rates[1].split()
    count = {5: "five"}[len(seeds[1].split())]
    assert f"learning rates {', '.join(most)} and {last} and {count} seeds" in " ".join(readme.split())


def test_options_are_named(readme: str) -> None:
    for name in (*TupeConfig.__dataclass_fields__, "selective_weight_decay"):
        if name not in ("_name", "variant"):
            assert f"`--{name.replace('_', '-')}`" in readme, name


def test_matrix_of_thetas_is_what_the_code_does(root: Path) -> None:
    """Every entry stands for a number of its own, which the reset moves about."""
    text = (root / "docs/thetas.md").read_text(encoding="utf-8")
    rows = re.findall(r"^(?:query i)? +(\d) {5,}((?:(?:θ\d|v\d\d) *){8})", text, re.MULTILINE)
    assert [int(i) for i, _ in rows] == list(range(8))
    number = {"θ": -1, "v": 1}
    drawn = [[number[entry[0]] * int(entry[1:]) for entry in row.split()] for _, row in rows]
    positions = torch.tensor([[10 * i + j for j in range(8)] for i in range(8)])
    assert drawn == reset_cls(positions[None], torch.tensor([-1]), torch.tensor([-2]))[0].tolist()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(root: Path, document: str) -> None:
    path = root / document
    text = path.read_text(encoding="utf-8")
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("recipe", sorted(path.name for path in (ROOT / "configs").glob("*.args")))
def test_recipes_are_flags_of_fairseq_train(recipe: str) -> None:
    text = (ROOT / "configs" / recipe).read_text(encoding="utf-8")
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    flags = [line[0] for line in lines if line]
    assert len(flags) == len(set(flags)), "each once"
    assert ["--optimizer", "fused_adamw"] in lines
    task = "tupe_sentence_prediction" if recipe == "glue.args" else "tupe_masked_lm"
    criterion = task if recipe == "glue.args" else "masked_lm"
    words = ["data", "--task", task, "--criterion", criterion, "--arch", "tupe_r_tiny"]
    args = parse_args_and_arch(get_training_parser(), words + [word for line in lines for word in line])
    for flag in flags:
        assert hasattr(args, flag[2:].replace("-", "_")), flag
