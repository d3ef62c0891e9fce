"""Whole trainings: updates by our scripts and recipe beside those of stock fairseq on the same data.

Both read one corpus, made by our commands; the stock training is fairseq-train's masked_lm and roberta_base
with the numbers of the same recipe and fairseq's own Adam.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from .benchmark_run import ROOT, complaint, finish, start

STOCK = "roberta_base"
RECIPE = ROOT / "configs/base.args"
WARM_UP = 2  # updates before the first that counts: they make gradients and the state of the optimizer
LOADED = 21  # batches
# A vocabulary of the base recipe's size out of a small text: short lines count, too.
CORPUS_FLAGS = ("-v", "32768", "--shrink-vocab", "--min-letters", "20", "--min-letter-share", "0.6")
QUICK_FLAGS = (
    *("--encoder-layers", "1", "--encoder-embed-dim", "64", "--encoder-ffn-embed-dim", "64"),
    *("--encoder-attention-heads", "1", "--tokens-per-sample", "32"),
)


@dataclass(frozen=True)
class Trainings:
    """What both trainings share."""

    corpus: Path
    folder: Path  # of their checkpoints and logs
    flags: Sequence[str]  # of fairseq-train, which win over the recipe's
    threads: int | None

    def command(self, name: str, save_dir: Path, updates: int) -> list[str]:
        """Of one run: STOCK, or the name of an architecture of ours."""
        limits = ["--max-update", str(updates), "--log-interval", "1", "--no-save", "--disable-validation"]
        if name != STOCK:
            script = ["bash", str(ROOT / "scripts/pretrain.sh"), str(self.corpus), str(save_dir)]
            return [*script, *self.flags, *limits]
        logs = ["--save-dir", str(save_dir), "--tensorboard-logdir", str(save_dir / "tensorboard")]
        return [sys.executable, "-m", "fairseq_cli.train", *self.words(name), *limits, *logs]

    def words(self, name: str) -> list[str]:
        """What fairseq-train is given, but for limits and logs: the data, then the recipe and our flags."""
        task = "masked_lm" if name == STOCK else "tupe_masked_lm"
        what = [str(self.corpus / "bin"), "--task", task, "--criterion", "masked_lm", "--arch", name]
        numbers = [*recipe("--optimizer"), "--optimizer", "adam"] if name == STOCK else recipe()
        return [*what, *numbers, *self.flags]

    def run(self, name: str, updates: int) -> list[float]:
        """Seconds of each update that counts: all that lies between two lines of the log.

        Raises:
            ChildProcessError: the training failed.
        """
        save_dir = self.folder / name
        shutil.rmtree(save_dir, ignore_errors=True)
        save_dir.mkdir(parents=True)
        log = save_dir / "train.log"
        with log.open("wb") as file:
            status = subprocess.run(
                self.command(name, save_dir, updates + WARM_UP),
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
                env=self._environment(name),
            ).returncode
        if status:
            name = f"the training of {name}, whose log is {log},"
            raise ChildProcessError(complaint(name, status, log.read_text()))
        return update_seconds(save_dir)[WARM_UP - 1 :]

    def _environment(self, name: str) -> Mapping[str, str]:
        """As common.sh makes it, for both."""
        own = {"ARCH": name, "CONFIG": str(RECIPE), "NPROC": "", "OMP_WAIT_POLICY": "passive"}
        if self.threads:
            own["OMP_NUM_THREADS"] = str(self.threads)
        return {**os.environ, **own}


def recipe(*without: str) -> list[str]:
    """The words of the recipe, but for the flags named."""
    lines = [line.partition("#")[0].split() for line in RECIPE.read_text(encoding="utf-8").splitlines()]
    return [word for line in lines if line and line[0] not in without for word in line]


def update_seconds(save_dir: Path) -> list[float]:
    """Seconds from each update's entry in TensorBoard's log to that of the next."""
    events = EventAccumulator(str(save_dir / "tensorboard/train_inner"), size_guidance={"scalars": 0})
    events.Reload()
    times = [event.wall_time for event in events.Scalars("loss")]
    return [later - earlier for earlier, later in zip(times, times[1:])]


def documentation(folder: Path) -> list[Path]:
    """The documentation that comes with Python, as the quickstart has it, written to the folder.

    Raises:
        ChildProcessError: the command failed.
    """
    finish(start(sys.executable, "-m", f"{__package__}.word_order", "-o", str(folder / "text")))
    return [folder / "text/pretrain.txt"]


def make_corpus(folder: Path, texts: Sequence[Path]) -> Path:
    """A corpus by our commands.

    Raises:
        ChildProcessError: the command failed.
    """
    script = ["bash", str(ROOT / "scripts/prepare_corpus.sh")]
    finish(start(*script, "-o", str(folder / "corpus"), *CORPUS_FLAGS, *map(str, texts)))
    return folder / "corpus"
