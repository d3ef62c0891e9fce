"""A pre-training of a few seconds with all that a resumed run can get wrong, and how two runs are compared.

Two shards of different sizes, taken in turn; an update of two batches, so that the last of an epoch is
smaller; dropout; a worker that loads data; and averages of the log that reach over the ends of epochs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tupe_fairseq.token_file import TokenFile
from tupe_fairseq.vocabulary import EOS

ROOT = Path(__file__).resolve().parent.parent
VOCAB, UPDATES = 50, 24
# 32 rows of 15 tokens are 8 batches of 4, and 20 rows 5: 4 and 3 updates an epoch
SHARDS = {"a": 32, "b": 20}
FLAGS = {
    "--sample-break-mode": "eos",
    "--tokens-per-sample": "16",
    "--batch-size": "4",
    "--update-freq": "2",
    "--num-workers": "1",
    "--encoder-layers": "2",
    "--encoder-embed-dim": "16",
    "--encoder-ffn-embed-dim": "32",
    "--dropout": "0.1",
    "--attention-dropout": "0.1",
    "--optimizer": "fused_adamw",
    "--weight-decay": "0.01",
    "--clip-norm": "1.0",
    "--lr": "1e-2",
    "--lr-scheduler": "polynomial_decay",
    "--warmup-updates": "4",
    "--total-num-update": str(UPDATES),
    "--max-update": str(UPDATES),
    "--log-format": "simple",
    "--log-interval": "5",
    "--save-interval-updates": "5",
    "--save-interval": "1",
    "--validate-interval": "1",
    "--keep-interval-updates": "2",
    "--no-epoch-checkpoints": "",
    "--no-position-logs": "",  # which cost a second at every validation
}


def make_corpora(folder: Path) -> str:
    """Two prepared corpora of random ids with one vocabulary; returns CORPUS as pretrain.sh takes it."""
    rng = np.random.default_rng(0)
    for name, rows in SHARDS.items():
        directory = folder / name / "bin"
        directory.mkdir(parents=True)
        words = "".join(f"▁a{i} 1\n" for i in range(VOCAB - 4))
        (directory / "dict.txt").write_text(words, encoding="utf-8")
        for split, count in (("train", rows), ("valid", 4)):
            with TokenFile(directory / split, VOCAB) as file:
                for _ in range(count):
                    file.add([*rng.integers(4, VOCAB, 14).tolist(), EOS])
    return ":".join(str(folder / name) for name in SHARDS)


def command(corpora: str, save_dir: Path, **changes: str) -> list[str]:
    """The command; ``max_update="4"`` changes a flag."""
    flags = FLAGS | {"--" + name.replace("_", "-"): value for name, value in changes.items()}
    words = [word for pair in flags.items() for word in pair if word]
    return ["bash", str(ROOT / "scripts" / "pretrain.sh"), corpora, str(save_dir), *words]


def start(words: list[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Starts a command in a process group of its own, which a kill can end as a whole."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"ARCH": "tupe_r_tiny", "OMP_NUM_THREADS": "1", "PATH": path, **environment}
    with log.open("ab") as out:
        return subprocess.Popen(
            words, env={**os.environ, **environment}, stdout=out, stderr=out, start_new_session=True
        )


def train(words: list[str], log: Path, **environment: str) -> tuple[int, str]:
    """Runs a command to its end; returns its status and what it said."""
    log.unlink(missing_ok=True)
    status = start(words, log, **environment).wait()
    return status, log.read_text(encoding="utf-8")


def result(save_dir: Path) -> dict[str, Any]:
    """What must be the same in two runs: weights, the optimizer's state, where the data stands, best loss."""
    state = torch.load(save_dir / "checkpoint_last.pt")
    extra = state["extra_state"]
    return {
        "model": state["model"],
        "optimizer": state["last_optimizer_state"],
        "updates": state["optimizer_history"][-1],
        "data": extra["train_iterator"],
        "best": extra["best"],
        "validation": extra["val_loss"],
    }


def equal(one: Any, other: Any) -> bool:
    """Whether two structures of tensors and values agree bit by bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


def losses(save_dir: Path, tag: str = "train_inner") -> dict[int, set[float]]:
    """The losses of TensorBoard's log, by update; more than one where runs differ."""
    found: dict[int, set[float]] = {}
    for folder in sorted((save_dir / "tensorboard").glob(tag)):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
        for event in events.Scalars("loss"):
            found.setdefault(event.step, set()).add(event.value)
    return found


def said(output: str) -> str:
    """The last line that is no progress of torch or a shell."""
    return re.sub(r"^.*?\| ERROR \| [\w.]+ \| ", "", output.strip().splitlines()[-1])
