"""Other ways into fairseq than the scripts: hydra, and flags that spread or spare memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_run
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.options import get_training_parser, parse_args_and_arch
from omegaconf import OmegaConf

WORDS = "--task tupe_masked_lm --arch tupe_r_base --criterion masked_lm --save-dir"


def leaves(node: dict[str, Any], path: str = "") -> dict[str, Any]:
    """The values of a nested mapping by their dotted names."""
    found = {}
    for key, value in node.items():
        found |= leaves(value, f"{path}{key}.") if isinstance(value, dict) else {path + key: value}
    return found


def test_the_recipe_of_hydra_is_that_of_the_scripts(root: Path) -> None:
    """Every value of the one is that of the other, and every flag of the other has a value in the one."""
    ours = OmegaConf.to_container(OmegaConf.load(root / "configs" / "hydra" / "base.yaml"))
    assert isinstance(ours, dict)
    del ours["hydra"]
    lines = (root / "configs" / "base.args").read_text(encoding="utf-8").splitlines()
    recipe = [word for line in lines for word in line.partition("#")[0].split()]
    args = parse_args_and_arch(get_training_parser(), ["DATA", *WORDS.split(), "SAVE", *recipe])
    theirs = OmegaConf.to_container(convert_namespace_to_omegaconf(args), resolve=True, enum_to_str=True)
    assert isinstance(theirs, dict)
    own, full = leaves(ours), leaves(theirs)
    places = {name: value for name, value in own.items() if value == "???" or "${" in str(value)}
    assert set(places) == {"task.data", "checkpoint.save_dir", "common.user_dir", "common.tensorboard_logdir"}
    full["model._name"] = "tupe"  # of which tupe_r_base is an architecture
    for name in own.keys() - places.keys():
        assert own[name] == full[name], name
    flags = {word.removeprefix("--").replace("-", "_") for word in recipe if word.startswith("--")}
    groups = {name.partition(".")[0] for name in own if name.endswith("._name")}
    assert flags <= {name.rpartition(".")[2] for name in own} | groups


@pytest.mark.slow
def test_hydra_trains_as_fairseq_train_does(root: Path, tmp_path: Path) -> None:
    """Bit for bit, though the one computes activations once more; and fairseq-validate reads a checkpoint."""
    data = tiny_run.make_corpora(tmp_path).partition(":")[0] + "/bin"
    options = {
        **{"common.user_dir": root / "tupe_fairseq", "common.cpu": "true", "task.data": data},
        **{"task.tokens_per_sample": 16, "+task.no_position_logs": "true", "dataset.batch_size": 2},
        **{"model.encoder_layers": 1, "model.encoder_embed_dim": 16, "model.encoder_ffn_embed_dim": 32},
        **{"model.encoder_attention_heads": 2, "optimization.max_update": 3, "checkpoint.save_dir": "hydra"},
    }
    words = [f"{name}={value}" for name, value in options.items()]
    words += ["+model.checkpoint_activations=true", "--config-dir", str(root / "configs" / "hydra")]
    run(tmp_path, "fairseq-hydra-train", "--config-name", "base", *words)
    lines = (root / "configs" / "base.args").read_text(encoding="utf-8").splitlines()
    flags = [word for line in lines for word in line.partition("#")[0].split()]
    for name, value in options.items():
        if name != "task.data":
            flags += [f"--{name.partition('.')[2].replace('_', '-')}", *([] if value == "true" else [value])]
    flags[flags.index("hydra")] = "flags"
    run(tmp_path, "fairseq-train", data, *WORDS.split()[:-1], *flags)
    assert tiny_run.equal(tiny_run.result(tmp_path / "hydra"), tiny_run.result(tmp_path / "flags"))
    assert not (tmp_path / "outputs").exists() and not (tmp_path / "hydra_train.log").exists()
    words = ["--user-dir", root / "tupe_fairseq", "--task", "tupe_masked_lm", "--batch-size", "2", "--cpu"]
    said = run(tmp_path, "fairseq-validate", data, "--path", "hydra/checkpoint_best.pt", *words)
    loss = tiny_run.result(tmp_path / "hydra")["best"]
    assert f"| loss {loss:g} |" in said


def run(folder: Path, command: str, *words: object) -> str:
    """One of fairseq's commands in a folder; returns what it said."""
    line = [str(Path(sys.executable).parent / command), *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
