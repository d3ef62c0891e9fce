"""The authors' training, as stored, and what fairseq-train makes of our recipes with its numbers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.options import get_training_parser, parse_args_and_arch

from tupe_fairseq.glue import KNOWN, TASKS, PreparedTask
from tupe_fairseq.official import TIED, parameters
from tupe_fairseq.token_file import TokenFile
from tupe_fairseq.vocabulary import EOS

NAMES = parameters(layers=2, relative=True, heads=["sentence_classification_head"])


def load(shared_data: Path, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of a trajectory, and its configuration."""
    with np.load(shared_data / "golden" / "trajectories" / f"{name}.npz", allow_pickle=False) as file:
        golden = dict(file)
    return golden, json.loads(str(golden["config/json"]))


def weights(golden: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Weights by our names, the tied matrix once."""
    names = [key for key in golden if key.startswith(prefix) and not key.endswith(TIED)]
    return {NAMES[key[len(prefix) :]][0]: golden[key] for key in names}


def prepare(folder: Path, stored: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder for either task, as our scripts make it: the vocabulary, and a few rows to train on.

    The table of GLUE has the task meanwhile, with the metrics of the trajectory.
    """
    (folder / "input0").mkdir(parents=True)
    (folder / "label").mkdir()
    pieces = range(4, stored["mask"])
    (folder / "dict.txt").write_text("".join(f"{i} 1\n" for i in pieces))
    rows = 80 if stored["task"] == "masked_lm" else 160  # of the recipes' batch sizes, 5 batches
    for prefix in ("train", "input0/train"):
        with TokenFile(folder / prefix, stored["mask"]) as file:
            for i in range(rows):
                file.add([*pieces[i % 40 : i % 40 + 13], EOS])
    (folder / "label/train.label").write_text("0\n1\n" * (rows // 2))
    row = TASKS["STS-B" if stored.get("regression") else "CoLA"]
    if not row.regression:
        row = replace(row, metrics=("accuracy", "f1", "mcc", "acc_f1"))
    row = replace(row, inputs=("sentence",))
    monkeypatch.setitem(KNOWN, row.name, row)
    PreparedTask(row, {"train": rows}, vocabulary="").save(folder)
    return folder


def configure(root: Path, data: Path, stored: dict[str, Any], *flags: object) -> Any:
    """What fairseq-train makes of a recipe, with the sizes and the schedule of a trajectory."""
    if stored["task"] == "masked_lm":
        recipe, task, criterion = "base.args", "tupe_masked_lm", "masked_lm"
    else:
        recipe, task, criterion = "glue.args", "tupe_sentence_prediction", "tupe_sentence_prediction"
    words = [
        *(data, "--user-dir", root / "tupe_fairseq", "--cpu", "--num-workers", 0, "--disable-validation"),
        *("--task", task, "--criterion", criterion, "--save-dir", data / "save"),
        *("--arch", f"{stored['variant'].lower().replace('-', '_')}_tiny"),
        *re.sub(r"#.*", "", (root / "configs" / recipe).read_text(encoding="utf-8")).split(),
        *("--lr", stored["lr_peak"], "--warmup-updates", stored["warmup_updates"]),
        *("--total-num-update", stored["total_updates"], "--max-update", stored["total_updates"]),
        *("--tokens-per-sample", stored["max_positions"], "--dropout", 0, "--attention-dropout", 0),
        *("--encoder-layers", stored["encoder_layers"], "--encoder-embed-dim", stored["encoder_embed_dim"]),
        *("--encoder-ffn-embed-dim", stored["encoder_ffn_embed_dim"]),
        *("--encoder-attention-heads", stored["encoder_attention_heads"]),
    ]
    args = parse_args_and_arch(get_training_parser(), [str(word) for word in (*words, *flags)])
    return convert_namespace_to_omegaconf(args)
