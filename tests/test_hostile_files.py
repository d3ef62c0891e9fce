"""Every file that comes in from outside, in every way: empty, cut off, random, or a pickle of code.

Each ends in one sentence that names it, and nothing runs.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_glue
import tiny_model
import tiny_official
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import setup_task
from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter

from tupe_fairseq import (
    convert,
    corpus,
    export_hf,
    fill_mask,
    glue_cli,
    glue_data,
    glue_flags,
    glue_sweep,
    plots,
    quickstart_report,
    validate,
)
from tupe_fairseq.glue import TASKS
from tupe_fairseq.glue_results import Result
from tupe_fairseq.token_file import TokenFile
from tupe_fairseq.vocabulary import EOS, Vocabulary

SHAPE = ["--encoder-layers", "1", "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8"]
SHAPE += ["--encoder-attention-heads", "2", "--max-positions", "40", "--tokens-per-sample", "40"]


# ---- What is hostile -------------------------------------------------------------------------------


def empty(path: Path) -> None:
    path.write_bytes(b"")


def half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def random_bytes(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(max(path.stat().st_size, 100)))


def bare_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(tiny_model.RunsCode(f"touch {witness(path)}")))


def saved_pickle(path: Path) -> None:
    torch.save({"model": tiny_model.RunsCode(f"touch {witness(path)}")}, path)


def witness(path: Path) -> Path:
    return path.parent / "it-ran"


KINDS = [empty, half, random_bytes, bare_pickle, saved_pickle]


# ---- A scene in which all is well -------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every file that a route reads."""
    scene = tmp_path_factory.mktemp("scene")
    words = Vocabulary(tiny_glue.make_corpus(scene / "corpus"))
    (scene / "corpus" / "bin").mkdir()
    shutil.copy(scene / "corpus" / "dict.txt", scene / "corpus" / "bin")
    for split in ("train", "valid"):
        with TokenFile(scene / "corpus" / "bin" / split, len(words)) as file:
            for number in range(20):
                file.add([*words.encode(tiny_glue.sentence(number, 9)), EOS])
    (scene / "text").write_text("\n".join(tiny_glue.sentence(number, 20) for number in range(20)))
    tiny_glue.make_rte(scene, scene / "corpus")
    for name, data, task, head in (
        ("save/checkpoint_last.pt", "corpus/bin", "tupe_masked_lm", None),
        ("tuned/checkpoint_best.pt", "bin/RTE", "tupe_sentence_prediction", 2),
    ):
        checkpoint(scene, scene / name, data, task, head)
    shutil.copy(scene / "save" / "checkpoint_last.pt", scene / "model.pt")
    torch.save(tiny_official.state(), scene / "official.pt")
    tiny_official.dictionary(scene / "official.txt")
    run = scene / "runs" / "RTE" / "lr-2e-5_seed-1"
    run.mkdir(parents=True)
    Result(TASKS["RTE"], "2e-5", 1, "tupe_r", "model.pt", {}, 10, {"valid": {"accuracy": 0.5}}, 1.0).save(run)
    (scene / "predictions").mkdir()
    rows = "".join(f"{i}\tentailment\n" for i in range(3000))
    (scene / "predictions" / "RTE.tsv").write_text("index\tprediction\n" + rows)
    fields = 'name = "Own"\ninputs = ["sentence1"]\nlabel = "label"\nepochs = 1\nmetrics = ["accuracy"]\n'
    files = 'labels = ["entailment", "not_entailment"]\ntrain = "train.tsv"\nvalid = "dev.tsv"\n'
    (scene / "glue" / "RTE" / "own.toml").write_text(fields + files)
    (scene / "recipe").write_text("--batch-size 4\n")
    quickstart(scene)
    return scene


def checkpoint(scene: Path, path: Path, data: str, task: str, head: int | None) -> None:
    """As fairseq's trainer writes it, as far as weights and options go."""
    cfg = configure(scene / data, task)
    there = setup_task(cfg.task)
    model = there.build_model(cfg.model)
    if head:
        model.register_classification_head("sentence_classification_head", head)
    state = {"args": None, "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)}
    state |= {"model": model.state_dict(), "task_state": there.state_dict()}
    state |= {
        "optimizer_history": [
            {"num_updates": 0, "best_loss": None, "criterion_name": "", "optimizer_name": ""}
        ]
    }
    state |= {"extra_state": {"train_iterator": {"epoch": 1}}}
    path.parent.mkdir()
    torch.save(state, path)


def quickstart(scene: Path) -> None:
    """A finished quickstart."""
    out = scene / "quickstart"
    (out / "corpus").mkdir(parents=True)
    (out / "corpus" / "summary.json").write_text(json.dumps({"unigram_bits": 8.0}))
    (out / "seconds.tsv").write_text("pre-training\t9\nfine-tuning\t9\n")
    for name in ("pretrain", "finetune"):
        with SummaryWriter(str(out / name / "tensorboard" / "valid")) as log:
            for step in range(3):
                for key in ("loss", "mcc", "accuracy"):
                    log.add_scalar(key, 0.5, step)
        for path in (out / name / "tensorboard" / "valid").iterdir():
            path.rename(path.with_name("events.out.tfevents.1"))
    shutil.copy(scene / "model.pt", out / "pretrain" / "checkpoint_last.pt")


# ---- The ways in -----------------------------------------------------------------------------------


def configure(data: Path, task: str, *flags: object) -> object:
    words = [
        str(data),
        "--task",
        task,
        "--arch",
        "tupe_r_tiny",
        "--batch-size",
        "4",
        *SHAPE,
        *map(str, flags),
    ]
    args = options.parse_args_and_arch(options.get_training_parser(), words)
    return convert_namespace_to_omegaconf(args)


def training(data: str, task: str, *flags: str) -> Callable[[Path], None]:
    """What fairseq-train does before the first update; "{}" is the scene."""

    def begin(scene: Path) -> None:
        cfg = configure(
            scene / data, task, "--save-dir", scene / "none", *(flag.format(scene) for flag in flags)
        )
        here = setup_task(cfg.task)
        here.build_model(cfg.model)
        for split in ("valid", "train"):
            here.load_dataset(split, epoch=1)

    return begin


def command(main: Callable[[], object], *words: str) -> Callable[[Path], None]:
    """A command line; "{}" is the scene."""

    def call(scene: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["command", *(word.format(scene) for word in words)])
            errors = io.StringIO()
            with redirect_stderr(errors):
                status = main()
        if status:
            raise SystemExit(errors.getvalue().strip())

    return call


def submission(scene: Path) -> None:
    """The zip of one task is written, with a warning that others are missing, and that status."""
    try:
        command(glue_cli.main, "submission", "{}/predictions", "-o", "{}/out.zip")(scene)
    except SystemExit as end:
        if "was written, but without" not in str(end):
            raise


class Way(NamedTuple):
    """A way in, the file that comes in, and what may be read though it is not as it was written."""

    file: str
    enter: Callable[[Path], None]
    accepts: tuple[Callable[[Path], None], ...] = ()


PRETRAIN, TUNE = ("corpus/bin", "tupe_masked_lm"), ("bin/RTE", "tupe_sentence_prediction")
PREDICT = command(glue_cli.main, "predict", "{}/tuned", "{}/bin", "RTE", "-o", "{}/out", "--cpu")
PREPARE = command(glue_data.main, "-g", "{}/glue", "-c", "{}/corpus", "-o", "{}/again", "RTE")
CONVERT = command(convert.main, "{}/official.pt", "--dict", "{}/official.txt", "-o", "{}/converted")
FILL = command(fill_mask.main, "{}/save", "the <mask>", "--data", "{}/corpus", "--cpu")
EXPORT = command(export_hf.main, "{}/model.pt", "{}/out", "--data", "{}/corpus")
REPORT = command(quickstart_report.main, "{}/quickstart")
VALIDATE = "{}/corpus/bin --path {}/model.pt --task tupe_masked_lm --batch-size 4 --cpu"
TUNING = "RTE {}/bin {}/model.pt --batch-size 4"
SWEEP = "{}/bin {}/model.pt {}/sweep --finetune f.sh --config {}/recipe --rates 1e-5 --seeds 1 --dry-run"
EVENTS = "tensorboard/valid/events.out.tfevents.1"
CHECKPOINTS = {
    "resume": Way("save/checkpoint_last.pt", training(*PRETRAIN, "--save-dir", "{}/save")),
    "--restore-file": Way("model.pt", training(*PRETRAIN, "--restore-file", "{}/model.pt")),
    "--finetune-from-model": Way("model.pt", training(*TUNE, "--finetune-from-model", "{}/model.pt")),
    "--continue-once": Way("model.pt", training(*PRETRAIN, "--continue-once", "{}/model.pt")),
    "validate": Way("model.pt", command(validate.main, *VALIDATE.split())),
    "finetune_glue.sh": Way("model.pt", command(glue_flags.main, *TUNING.split())),
    "sweep_glue.sh": Way("model.pt", command(glue_sweep.main, *SWEEP.split())),
    "predict": Way("tuned/checkpoint_best.pt", PREDICT),
    "convert": Way("official.pt", CONVERT),
    "fill_mask": Way("save/checkpoint_last.pt", FILL),
    "export_hf": Way("model.pt", EXPORT),
    "plots": Way("model.pt", command(plots.main, "positions", "{}/model.pt", "{}/out.png")),
    "quickstart_report": Way("quickstart/pretrain/checkpoint_last.pt", REPORT),
}
OTHERS = {
    "dictionary, pre-training": Way("corpus/bin/dict.txt", training(*PRETRAIN)),
    "index, pre-training": Way("corpus/bin/train.idx", training(*PRETRAIN)),
    "ids, pre-training": Way("corpus/bin/train.bin", training(*PRETRAIN)),
    "ids, validation": Way("corpus/bin/valid.bin", training(*PRETRAIN)),
    "dictionary, fine-tuning": Way("bin/RTE/dict.txt", training(*TUNE)),
    "description, fine-tuning": Way("bin/RTE/task.json", training(*TUNE)),
    "index, fine-tuning": Way("bin/RTE/input1/valid.idx", training(*TUNE)),
    "ids, fine-tuning": Way("bin/RTE/input0/train.bin", training(*TUNE)),
    "labels, fine-tuning": Way("bin/RTE/label/train.label", training(*TUNE)),
    "dictionary, predict": Way("bin/RTE/dict.txt", PREDICT),
    "description, predict": Way("bin/RTE/task.json", PREDICT),
    "index, predict": Way("bin/RTE/input0/test.idx", PREDICT),
    "ids, predict": Way("bin/RTE/input1/test.bin", PREDICT),
    "SentencePiece, prepare_glue.sh": Way("corpus/spm.model", PREPARE),
    "dictionary, prepare_glue.sh": Way("corpus/dict.txt", PREPARE),
    "task of one's own, prepare_glue.sh": Way(
        "glue/RTE/own.toml",
        command(glue_data.main, "-c", "{}/corpus", "-o", "{}/again", "{}/glue/RTE/own.toml"),
    ),
    "rows, prepare_glue.sh": Way("glue/RTE/train.tsv", PREPARE),
    "SentencePiece, prepare_corpus.sh": Way(
        "corpus/spm.model",
        command(corpus.main, "{}/text", "-o", "{}/new", "--vocab-from", "{}/corpus", "--workers", "1"),
    ),
    "SentencePiece, fill_mask": Way("corpus/spm.model", FILL),
    "dictionary, export_hf": Way("corpus/dict.txt", EXPORT),
    "dictionary, convert": Way("official.txt", CONVERT),
    "result, report": Way("runs/RTE/lr-2e-5_seed-1/result.json", command(glue_cli.main, "report", "{}/runs")),
    "predictions, submission": Way("predictions/RTE.tsv", submission),
    "events, plots": Way(
        f"quickstart/pretrain/{EVENTS}",
        command(plots.main, "curves", "{}/quickstart/pretrain", "-o", "{}/out.png"),
        accepts=(half,),  # TensorBoard reads what there is: a run may still write
    ),
    "events, quickstart_report": Way(f"quickstart/finetune/{EVENTS}", REPORT, accepts=(half,)),
    "summary, quickstart_report": Way("quickstart/corpus/summary.json", REPORT),
    "seconds, quickstart_report": Way("quickstart/seconds.tsv", REPORT, accepts=(empty, half)),  # whole lines
}
WAYS = CHECKPOINTS | OTHERS


@pytest.fixture
def scene(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "scene"))


@pytest.mark.parametrize("way", WAYS)
def test_all_is_well(scene: Path, way: str) -> None:
    WAYS[way].enter(scene)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_hostile_file_is_one_sentence(scene: Path, way: str, kind: Callable[[Path], None]) -> None:
    path = scene / WAYS[way].file
    kind(path)
    if kind in WAYS[way].accepts:
        WAYS[way].enter(scene)
        return
    with pytest.raises((SystemExit, ValueError, OSError)) as caught:
        WAYS[way].enter(scene)
    sentence = str(caught.value)
    assert path.name in sentence or str(path.parent) in sentence
    assert "\n" not in sentence
    assert len(sentence) < 500
    assert not witness(path).exists(), "it ran"


def test_nothing_else_reads_pickles(root: Path) -> None:
    """Whatever can run code while it reads stands in checkpoints.py alone, with weights_only."""
    words = ["torch\\.load\\(", "np\\.load\\(", "import pickle", "pickle\\.", "joblib", "shelve", "marshal"]
    risky = re.compile("|".join([*words, "yaml\\.load\\(", "(?<!\\.)\\beval\\(", "\\bexec\\("]))
    found = {
        path.name: risky.findall(path.read_text(encoding="utf-8"))
        for path in (root / "tupe_fairseq").glob("*.py")
        if risky.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"checkpoints.py": ["torch.load("]}
    assert "weights_only=True" in (root / "tupe_fairseq" / "checkpoints.py").read_text(encoding="utf-8")
