"""What is refused in the first seconds of fairseq-train: each mistake, through the calls that it makes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_glue
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import setup_task
from omegaconf import OmegaConf

from tupe_fairseq.model import TupeModel
from tupe_fairseq.token_file import TokenFile
from tupe_fairseq.vocabulary import EOS

PIECES = [f"piece{i}" for i in range(20)]
SHAPE = ["--encoder-layers", "1", "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8"]
SHAPE += ["--encoder-attention-heads", "2", "--tokens-per-sample", "8"]


def prepare(folder: Path, pieces: list[str] = PIECES) -> Path:
    """A folder of prepared text: 13 lines of 7 tokens, a block each with the <s> before it."""
    folder.mkdir()
    (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces))
    for split in ("train", "valid"):
        with TokenFile(folder / split, len(pieces) + 4) as file:
            for i in range(13):
                file.add([4 + (i + j) % 20 for j in range(6)] + [EOS])
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards of one vocabulary, `a` and `b`."""
    for name in "ab":
        prepare(tmp_path / name)
    return tmp_path


def configure(data: str, *flags: object, save_dir: Path) -> Any:
    """The configuration of a run of fairseq-train."""
    words = [data, "--task", "tupe_masked_lm", "--criterion", "masked_lm", "--arch", "tupe_r_tiny"]
    words += ["--save-dir", str(save_dir), "--batch-size", "4", *SHAPE, *map(str, flags)]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    return convert_namespace_to_omegaconf(args)


def begin(cfg: Any) -> Any:
    """What fairseq-train does before the first update."""
    task = setup_task(cfg.task)
    task.build_model(cfg.model)
    for split in (*cfg.dataset.valid_subset.split(","), "train"):
        task.load_dataset(split, epoch=1)
    return task


def checkpoint(path: Path, *flags: object, pieces: list[str] = PIECES) -> None:
    """A checkpoint as fairseq's trainer writes it, as far as weights and options go."""
    data = path.parent.parent / "of-checkpoint"
    shutil.rmtree(data, ignore_errors=True)
    cfg = configure(str(prepare(data, pieces)), *flags, save_dir=path.parent.parent / "none")
    task = setup_task(cfg.task)
    state = {"args": None, "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)}
    state |= {"model": task.build_model(cfg.model).state_dict(), "task_state": task.state_dict()}
    state |= {"optimizer_history": [{"lr_scheduler_state": {}}], "extra_state": {"train_iterator": {}}}
    path.parent.mkdir(exist_ok=True)
    torch.save(state, path)


Change = Callable[[Path, pytest.MonkeyPatch], None]


def without(name: str) -> Change:
    return lambda folder, patch: (folder / name).unlink()


def nothing(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """All is well with the files."""


def other_pieces(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "b" / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in PIECES[::-1]))


def unreadable(folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(os, "access", lambda path, mode: not str(path).endswith("b/train.bin"))  # root may read all


def started_by(name: str) -> Change:
    return lambda folder, patch: patch.setenv(name, "2")


def other_model(folder: Path, patch: pytest.MonkeyPatch) -> None:
    checkpoint(folder / "save" / "checkpoint_last.pt", "--encoder-layers", 2)


def other_vocabulary(folder: Path, patch: pytest.MonkeyPatch) -> None:
    checkpoint(folder / "save" / "checkpoint_last.pt", pieces=PIECES[::-1])


FILES: dict[str, tuple[Change, str]] = {
    "no dictionary": (without("a/dict.txt"), "no dictionary {folder}/a/dict.txt; scripts/prepare_corpus.sh"),
    "no text": (without("a/train.bin"), "no file {folder}/a/train.bin; scripts/prepare_corpus.sh makes it"),
    "no validation": (without("a/valid.idx"), "no file {folder}/a/valid.idx; scripts/prepare_corpus.sh"),
    "no second shard": (without("b/train.idx"), "no file {folder}/b/train.idx; scripts/prepare_corpus.sh"),
    "unreadable": (unreadable, "cannot read {folder}/b/train.bin"),
    "another dictionary": (other_pieces, "{folder}/b/dict.txt has other pieces than {folder}/a/dict.txt"),
    "torchrun": (
        started_by("WORLD_SIZE"),
        "2 processes were started together (WORLD_SIZE), and fairseq was to",
    ),
    "srun": (started_by("SLURM_STEP_NUM_TASKS"), "2 processes were started together (SLURM_STEP_NUM_TASKS)"),
    "mpirun": (
        started_by("OMPI_COMM_WORLD_SIZE"),
        "2 processes were started together (OMPI_COMM_WORLD_SIZE)",
    ),
}
FLAGS: dict[str, tuple[str, str]] = {
    "half precision": ("--fp16 --cpu", "--fp16 needs a GPU, and this run has none; leave it out"),
    "a shared out model": (
        "--ddp-backend fully_sharded",
        "--ddp-backend fully_sharded needs GPUs and fairscale (pip install fairscale); leave it out",
    ),
    "written beside the training": (
        "--write-checkpoints-asynchronously",
        "--write-checkpoints-asynchronously leaves the run without checkpoint_last.pt",
    ),
    "no room": ("--tokens-per-sample 3", "--tokens-per-sample 3 leaves no room for text; give 4 or more"),
    "no masks": ("--mask-prob 0", "--mask-prob 0.0 must lie between 0 and 1"),
    "metric": (
        "--best-checkpoint-metric mcc",
        "--best-checkpoint-metric mcc is not reported; there are loss",
    ),
    "no such subset": ("--valid-subset valid,test", "no file {folder}/a/test.idx; scripts/prepare_corpus.sh"),
    "no checkpoint": ("--restore-file none.pt", "no checkpoint none.pt"),
    "too long": (
        "--max-positions 7",
        "--tokens-per-sample 8 asks for longer sequences than the --max-positi",
    ),
    "batch": (
        "--batch-size 7 --update-freq 2",
        "{folder}/a:{folder}/b (train, epoch 1) has 13 samples to train on, and an update needs 14 "
        "(--batch-size 7 x --update-freq 2 x 1 process(es)); lower one of them",
    ),
}
SAVED: dict[str, tuple[Change, str]] = {
    "another model": (
        other_model,
        "{folder}/save/checkpoint_last.pt is of another model: encoder_layers 2 th",
    ),
    "its dictionary": (
        other_vocabulary,
        "{folder}/save/checkpoint_last.pt is of another model: another vocab",
    ),
}
BUILT = {"no checkpoint", "too long", "batch", *SAVED}  # found when there is a model, before any update
CASES = [(name, change, "", sentence) for name, (change, sentence) in (FILES | SAVED).items()]
CASES += [(name, nothing, flags, sentence) for name, (flags, sentence) in FLAGS.items()]


@pytest.mark.parametrize("name, change, flags, sentence", CASES, ids=[case[0] for case in CASES])
def test_a_mistake_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Change, flags: str, sentence: str
) -> None:
    """Most of them before a model is built, which may take a while."""
    change(folder, monkeypatch)
    if name not in BUILT:
        monkeypatch.setattr(TupeModel, "build_model", None)
    with pytest.raises((ValueError, OSError)) as caught:
        begin(configure(f"{folder}/a:{folder}/b", *flags.split(), save_dir=folder / "save"))
    assert str(caught.value).startswith(sentence.format(folder=folder))
    assert "\n" not in str(caught.value)


def test_what_just_fits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates of as many samples as there are; two processes that fairseq was told of; no validation."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for suffix in ("idx", "bin"):
        (folder / "a" / f"valid.{suffix}").unlink()
    flags = ["--batch-size", 7, "--disable-validation", "--distributed-world-size", 2]
    cfg = configure(f"{folder}/a:{folder}/b", *flags, save_dir=folder / "save")
    task = setup_task(cfg.task)
    task.build_model(cfg.model)
    with pytest.raises(ValueError, match="has 13 samples to train on, and an update needs 14"):
        task.load_dataset("train")
    task.cfg._get_root().dataset.batch_size = 6
    task.load_dataset("train")


def test_a_small_later_shard_does_not_end_a_run(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = begin(configure(f"{folder}/a:{folder}/b", "--batch-size", 13, save_dir=folder / "save"))
    task.cfg._get_root().dataset.batch_size = 14
    task.load_dataset("train", epoch=2)
    assert "(train, epoch 2) has 13 samples to train on, and an update needs 14" in caplog.text


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (
            "--valid-subset valid,valid1",
            "{rte} has no valid1 rows (--valid-subset); there are train, valid, test",
        ),
        ("--batch-size 41", "{rte} (train, epoch 1) has 40 samples to train on, and an update needs 41"),
        ("--tokens-per-sample 4", "--tokens-per-sample 4 leaves no room for text; RTE needs"),
        (
            "--best-checkpoint-metric mcc",
            "--best-checkpoint-metric mcc is not reported; there are loss, accur",
        ),
        ("--bf16 --cpu", "--bf16 needs a GPU"),
    ],
)
def test_mistakes_of_fine_tuning(tmp_path: Path, flags: str, sentence: str) -> None:
    rte = tiny_glue.make_rte(tmp_path, tiny_glue.make_corpus(tmp_path / "corpus"))
    names = ["--task", "tupe_sentence_prediction", "--criterion", "tupe_sentence_prediction"]
    with pytest.raises(ValueError) as caught:
        begin(configure(str(rte), *names, *flags.split(), save_dir=tmp_path / "save"))
    assert str(caught.value).startswith(sentence.format(rte=rte))
