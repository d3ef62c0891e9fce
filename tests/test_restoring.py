"""The checkpoint a training starts from: found as fairseq finds it, and refused if it is of another model."""

from __future__ import annotations

import itertools
import logging
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import setup_task
from omegaconf import OmegaConf
from tiny_model import RunsCode

from tupe_fairseq.model import load_model
from tupe_fairseq.restoring import Start, check_start, find_start
from tupe_fairseq.token_file import TokenFile
from tupe_fairseq.variants import VARIANTS
from tupe_fairseq.vocabulary import EOS, dictionary_fingerprint

PIECES = [f"piece{i}" for i in range(20)]
SHAPE = ["--encoder-layers", "1", "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8"]
SHAPE += ["--encoder-attention-heads", "2", "--max-positions", "8", "--tokens-per-sample", "8"]


def data(folder: Path, name: str, pieces: list[str]) -> Path:
    """A data folder that has a dictionary, and a line of text."""
    (folder / name).mkdir()
    (folder / name / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces))
    for split in ("train", "valid"):
        with TokenFile(folder / name / split, len(pieces) + 4) as file:
            file.add([4, EOS])
    return folder / name


def configure(folder: Path, *flags: object, arch: str = "tupe_r_tiny", save_dir: str = "save") -> Any:
    """The configuration of a run of fairseq-train."""
    words = [folder, "--task", "tupe_masked_lm", "--arch", arch, "--save-dir", folder / save_dir]
    words += ["--batch-size", "4", *SHAPE, *flags]
    args = options.parse_args_and_arch(options.get_training_parser(), [str(word) for word in words])
    return convert_namespace_to_omegaconf(args)


def build(cfg: Any) -> torch.nn.Module:
    """What fairseq-train does before it reads any data."""
    return setup_task(cfg.task).build_model(cfg.model)


def save(cfg: Any, path: Path) -> torch.nn.Module:
    """A checkpoint as fairseq's trainer writes it, as far as weights and options go; returns its model."""
    task = setup_task(cfg.task)
    model = task.build_model(cfg.model)
    state = {"args": None, "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)}
    path.parent.mkdir(exist_ok=True)
    state |= {
        "model": model.state_dict(),
        "task_state": task.state_dict(),
        "optimizer_history": [{"lr_scheduler_state": {}}],
    }
    state["extra_state"] = {"train_iterator": {"epoch": 1}}
    torch.save(state, path)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return data(tmp_path, "data", PIECES)


@pytest.fixture
def path(folder: Path) -> Path:
    """A checkpoint of tupe_r."""
    save(configure(folder), folder / "model.pt")
    return folder / "model.pt"


def refused(cfg: Any) -> str:
    with pytest.raises(ValueError) as caught:
        build(cfg)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_found_as_fairseq_finds_it(folder: Path) -> None:
    """Its load_checkpoint is called with a trainer that keeps what it is given."""

    class Found(Exception):
        pass

    class Trainer:
        def __init__(self, suffix: str) -> None:
            self.checkpoint_suffix = suffix

        def load_checkpoint(self, path: str, reset_optimizer: bool, *args: object, **others: object) -> None:
            raise Found(path, reset_optimizer)

    last, other, cfg = folder / "save" / "checkpoint_last.pt", folder / "other.pt", configure(folder)
    last.parent.mkdir()
    other.touch()
    choices: list[dict[str, object]] = [
        {},
        {"restore_file": str(other)},
        {"finetune_from_model": str(other)},
        {"continue_once": str(other)},
        {"reset_optimizer": True},
        {"reset_optimizer": True, "restore_file": str(other)},
        {"reset_optimizer": True, "continue_once": str(other)},
        {"checkpoint_suffix": "-a"},
        {"checkpoint_suffix": "-a", "restore_file": str(other)},
    ]
    for exists in (False, True):
        if exists:
            last.touch()
        for choice in choices:
            changed = OmegaConf.merge(cfg.checkpoint, choice)
            with pytest.raises(Found) as found:
                checkpoint_utils.load_checkpoint(changed, Trainer(changed.checkpoint_suffix))
            path, reset_optimizer = found.value.args
            own = Path(path).parent == last.parent
            expected: Start | None = Start(Path(path), not reset_optimizer, own)
            if own and not Path(path).exists():
                expected = None  # a first run: fairseq looks there and begins anew
            assert find_start(changed) == expected, choice


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_model_starts(folder: Path, variant: str) -> None:
    cfg = configure(folder, arch=f"{variant}_tiny")
    save(cfg, folder / "save" / "checkpoint_last.pt")
    build(cfg)


@pytest.mark.parametrize(
    "there, way", zip(VARIANTS, itertools.cycle(["--restore-file", "--finetune-from-model", "resume"]))
)
def test_another_variant(folder: Path, there: str, way: str) -> None:
    here = "tupe_r" if there != "tupe_r" else "tupe_a"
    path = folder / ("save/checkpoint_last.pt" if way == "resume" else "model.pt")
    save(configure(folder, arch=f"{there}_tiny", save_dir="first"), path)
    message = refused(configure(folder, *([] if way == "resume" else [way, path]), arch=f"{here}_tiny"))
    assert message.startswith(f"{path} is of another model: variant {there} there, {here} here (--arch). ")


@pytest.mark.parametrize(
    "flag, value, there",
    [
        ("--encoder-layers", "2", "1"),
        ("--encoder-embed-dim", "16", "8"),
        ("--encoder-ffn-embed-dim", "16", "8"),
        ("--encoder-attention-heads", "4", "2"),  # changes no shape in tupe_a
        ("--max-positions", "9", "8"),
        ("--rel-pos-bins", "16", "32"),
        ("--max-rel-pos", "64", "128"),  # changes no shape
    ],
)
def test_another_shape(folder: Path, flag: str, value: str, there: str) -> None:
    save(configure(folder, arch="tupe_a_tiny"), folder / "model.pt")
    words = ["--restore-file", folder / "model.pt", flag, value]
    message = refused(configure(folder, *words, arch="tupe_a_tiny"))
    name = flag[2:].replace("-", "_")
    assert f": {name} {there} there, {value} here ({flag}). " in message
    assert ("--resize-positions makes" in message) == (flag == "--max-positions")


def test_all_differences_are_named_at_once(folder: Path, path: Path) -> None:
    flags = ["--restore-file", path, "--encoder-layers", "2"]
    message = refused(configure(data(folder, "b", PIECES[:-1]), *flags, arch="tupe_a_tiny"))
    assert "variant tupe_r there, tupe_a here (--arch); encoder_layers 1 there, 2 here (--enc" in message
    assert "a vocabulary of 25 there, of 24 here (dict.txt of the data folder)" in message


def test_another_vocabulary_of_the_same_size(folder: Path, path: Path) -> None:
    swapped = data(folder, "swapped", [*PIECES[1::-1], *PIECES[2:]])
    message = refused(configure(swapped, "--restore-file", path))
    assert "another vocabulary of the same 25 pieces (dict.txt of the data folder)" in message


def test_a_task_made_from_a_checkpoint_refuses_another_vocabulary(
    folder: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As fairseq-validate makes it, with the data folder that it is given."""
    checkpoint_utils.load_model_ensemble_and_task([str(path)])
    for pieces in ([*PIECES[1::-1], *PIECES[2:]], PIECES[:-1]):
        other = str(data(folder, f"of{len(pieces)}", pieces))
        with pytest.raises(ValueError, match=f"trained with another vocabulary than that of {other}; name"):
            checkpoint_utils.load_model_ensemble_and_task([str(path)], {"data": other})
    torch.save({**torch.load(path), "task_state": {}}, path)
    checkpoint_utils.load_model_ensemble_and_task([str(path)])
    assert "the checkpoint has no fingerprint of its vocabulary; it may be another" in caplog.text


def test_a_checkpoint_without_a_fingerprint(
    folder: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = torch.load(path)
    del state["task_state"]
    torch.save(state, path)
    build(configure(folder, "--restore-file", path))
    assert f"{path} has no fingerprint of its vocabulary; its size was compared alone" in caplog.text


def test_a_model_of_a_glue_task_is_not_trained_on_with_another(folder: Path, path: Path) -> None:
    state = torch.load(path)
    state["task_state"]["glue_task"] = "CoLA"
    torch.save(state, path)
    message = refused(configure(folder, "--restore-file", path))
    assert "fine-tuned on CoLA there, not at all here. Give these flags its values, or name ano" in message
    build(configure(folder, "--finetune-from-model", path))


@pytest.mark.parametrize("stored, rule", [(None, "if they fit"), ("RTE", "if they fit"), ("CoLA", "unused")])
def test_a_head_is_taken_from_the_same_task_alone(
    folder: Path, path: Path, stored: str | None, rule: str
) -> None:
    state = torch.load(path)
    state["task_state"]["glue_task"] = stored
    torch.save(state, path)
    model = load_model(state)
    own = {**state["task_state"], "glue_task": "RTE"}
    check_start(Start(path, resumed=False), state, model, own)
    assert model.checkpoint_heads == rule


@pytest.mark.parametrize("metric", ["mcc", "los", "nll_loss"])
def test_an_unknown_metric(folder: Path, metric: str) -> None:
    flags = ["--criterion", "masked_lm", "--best-checkpoint-metric", metric]
    expected = f"--best-checkpoint-metric {metric} is not reported; there are loss, ppl"
    assert refused(configure(folder, *flags)) == expected
    build(configure(folder, *flags, "--disable-validation"))
    build(configure(folder, "--criterion", "masked_lm", "--best-checkpoint-metric", "ppl"))


def test_a_file_that_is_not_there(folder: Path) -> None:
    """fairseq would train from nothing."""
    for flag in ("--restore-file", "--finetune-from-model"):
        with pytest.raises(FileNotFoundError, match=r"no checkpoint .*/missing\.pt"):
            build(configure(folder, flag, folder / "missing.pt"))


@pytest.mark.parametrize("way", ["--restore-file", "--finetune-from-model", "resume"])
def test_code_does_not_run(folder: Path, way: str) -> None:
    path = folder / ("save/checkpoint_last.pt" if way == "resume" else "model.pt")
    path.parent.mkdir(exist_ok=True)
    torch.save({"model": RunsCode(f"touch {folder / 'it-ran'}")}, path)
    message = refused(configure(folder, *([] if way == "resume" else [way, path])))
    assert f"{path} was not loaded: it names {os.system.__module__}.system" in message
    assert not (folder / "it-ran").exists()


# Other lengths


def resized(folder: Path, positions: int, *flags: object, arch: str) -> torch.nn.Module:
    """A model of other length with the weights of model.pt, loaded as fairseq's trainer does."""
    words = ["--max-positions", positions, "--tokens-per-sample", min(8, positions), *flags]
    model = build(configure(folder, *words, "--resize-positions", arch=arch, save_dir=f"save{positions}"))
    model.load_state_dict(torch.load(folder / "model.pt")["model"], strict=True)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_shorter_model_is_exact(folder: Path, variant: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    arch = f"{variant}_tiny"
    whole = save(configure(folder, arch=arch), folder / "model.pt").eval()
    model = resized(folder, 5, "--finetune-from-model", folder / "model.pt", arch=arch).eval()
    assert re.search(r"weight: 8 positions in the checkpoint, 5 here; its rows are cut", caplog.text)
    tokens = torch.tensor([[0, 7, 9, 4, 2]])
    assert torch.equal(model(tokens)[0], whole(tokens)[0])
    with pytest.raises(ValueError, match="6 tokens is longer than the model's 5 positions"):
        model(torch.zeros(1, 6, dtype=torch.long))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_longer_model(folder: Path, variant: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    arch = f"{variant}_tiny"
    save(configure(folder, arch=arch), folder / "model.pt")
    model = resized(folder, 16, "--finetune-from-model", folder / "model.pt", arch=arch)
    assert re.search(r"weight: 8 positions in the checkpoint, 16 here; its rows are interpol", caplog.text)
    assert model(torch.randint(4, 25, (2, 16)))[0].shape == (2, 16, 25)


def test_a_resized_model_goes_on(folder: Path, path: Path) -> None:
    flags = ["--max-positions", "16", "--finetune-from-model", path, "--resize-positions"]
    cfg = configure(folder, *flags)
    model = save(cfg, folder / "save" / "checkpoint_last.pt")
    build(cfg).load_state_dict(model.state_dict(), strict=True)
    again = load_model(torch.load(folder / "save" / "checkpoint_last.pt"))
    assert again.max_positions() == 16


def test_resizing_needs_a_fresh_optimizer(folder: Path, path: Path) -> None:
    flags = ["--max-positions", "16", "--resize-positions"]
    build(configure(folder, *flags, "--restore-file", path))  # has no optimizer's state
    torch.save({**torch.load(path), "last_optimizer_state": {}}, path)
    message = refused(configure(folder, *flags, "--restore-file", path))
    assert "state for another number of positions" in message and message.endswith("add --reset-optimizer")
    build(configure(folder, *flags, "--restore-file", path, "--reset-optimizer"))
    (folder / "save").mkdir()
    path.rename(folder / "save" / "checkpoint_last.pt")
    message = refused(configure(folder, *flags, "--finetune-from-model", path))
    assert message.endswith("name another --save-dir")


@pytest.mark.parametrize("weight", ["lm_head.bias", "encoder.layers.0.fc1.weight"])
def test_weights_that_are_missing_or_too_many(folder: Path, path: Path, weight: str) -> None:
    state = torch.load(path)
    state["model"]["extra"] = state["model"].pop(weight)
    torch.save(state, path)
    assert refused(configure(folder, "--restore-file", path)) == f"{path} lacks: {weight}"
    state["model"][weight] = state["model"]["extra"]
    torch.save(state, path)
    assert refused(configure(folder, "--restore-file", path)) == f"{path} has unknown weights: extra"


def test_a_weight_of_another_shape(folder: Path, path: Path) -> None:
    state = torch.load(path)
    state["model"]["lm_head.bias"] = torch.zeros(3)
    torch.save(state, path)
    assert refused(configure(folder, "--restore-file", path)) == f"{path} has in another shape: lm_head.bias"


def test_one_position_cannot_be_stretched(folder: Path) -> None:
    path = folder / "model.pt"
    save(configure(folder), path)
    state = torch.load(path)
    state["cfg"]["model"]["max_positions"] = 1
    table = "encoder.position_bias.absolute.embedding.weight"
    state["model"][table] = state["model"][table][:2].clone()
    torch.save(state, path)
    message = refused(configure(folder, "--finetune-from-model", path, "--resize-positions"))
    assert f"{path} cannot be resized: a table of one position" in message


@pytest.mark.parametrize("missing", ["optimizer_history", "extra_state", "lr_scheduler_state"])
def test_a_file_without_the_record_of_a_training(folder: Path, path: Path, missing: str) -> None:
    state = torch.load(path)
    del (state["optimizer_history"][-1] if missing == "lr_scheduler_state" else state)[missing]
    torch.save(state, path)
    message = refused(configure(folder, "--finetune-from-model", path))
    assert f"{path} has weights without the record of a training" in message


def test_a_training_does_not_go_on_without_its_optimizer(folder: Path, path: Path) -> None:
    """fairseq would count its updates from 0 again, and its batches from where they were."""
    state = torch.load(path)
    state["optimizer_history"][-1]["num_updates"] = 3
    torch.save(state, path)
    message = refused(configure(folder, "--restore-file", path))
    assert "was saved without the optimizer's state, so its training cannot go on" in message
    build(configure(folder, "--restore-file", path, "--reset-optimizer"))
    torch.save({**state, "last_optimizer_state": {}}, path)
    build(configure(folder, "--restore-file", path))


@pytest.mark.parametrize("flag", ["--fp16", "--bf16"])
def test_half_precision_needs_a_gpu(folder: Path, flag: str) -> None:
    assert refused(configure(folder, flag, "--cpu")).startswith(f"{flag} needs a GPU")


@pytest.mark.parametrize("task_state", [None, [1], "text"])
def test_a_state_of_the_task_that_is_none(folder: Path, path: Path, task_state: object) -> None:
    torch.save({**torch.load(path), "task_state": task_state}, path)
    build(configure(folder, "--restore-file", path))


def test_a_model_made_from_a_checkpoint_looks_at_no_other(folder: Path, path: Path) -> None:
    """That one had started from a file which is gone."""
    state = torch.load(path)
    state["cfg"]["checkpoint"]["finetune_from_model"] = str(folder / "gone.pt")
    torch.save(state, path)
    checkpoint_utils.load_model_ensemble_and_task([str(path)])


def test_other_differences_are_refused_with_resizing_too(folder: Path, path: Path) -> None:
    flags = ["--max-positions", "16", "--finetune-from-model", path, "--resize-positions"]
    message = refused(configure(folder, *flags, arch="tupe_a_tiny"))
    assert ": variant tupe_r there, tupe_a here (--arch). Give" in message


def test_fingerprint() -> None:
    assert dictionary_fingerprint(["a", "b"]) != dictionary_fingerprint(["b", "a"])
    assert dictionary_fingerprint(["a", "b"]) == (  # printf 'a\nb' | sha256sum
        "7e18f737311b2dc3b2f269dd78396b0351f14fb66efa879f768cb23181883c78"
    )


def trained(folder: Path, name: str, updates: int, **progress: object) -> Path:
    """A checkpoint in SAVE_DIR of so many updates."""
    path = folder / "save" / f"checkpoint_{name}.pt"
    save(configure(folder, "--no-save"), path)
    state = torch.load(path)
    state["optimizer_history"] = [{"lr_scheduler_state": {}, "num_updates": updates}]
    state["extra_state"]["train_iterator"] |= progress
    torch.save(state | {"last_optimizer_state": {}}, path)
    return path


@pytest.mark.parametrize("problem", ["cut", "gone"])
def test_the_newest_whole_checkpoint_takes_the_place_of_a_damaged_one(
    problem: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained(folder, "1_5", 5)
    whole, last = trained(folder, "1_10", 10), trained(folder, "last", 12)
    model = folder / "model.pt"
    if problem == "cut":
        last.write_bytes(last.read_bytes()[:-1])
    else:
        last.unlink()
    cfg = configure(folder, "--finetune-from-model", model)  # which has been done: it is a run that goes on
    build(cfg)
    sentence = "it was cut off, or is no checkpoint" if problem == "cut" else "there is no such file"
    assert f"{last} cannot be used ({sentence}); going on from {whole} (update 10)" in caplog.text
    assert find_start(cfg.checkpoint) == Start(whole, resumed=True, own=True)
    loaded: list[object] = []

    class Trainer:
        checkpoint_suffix = ""

        def load_checkpoint(self, *given: object, **others: object) -> None:
            loaded.extend(given)

        def get_train_iterator(self, **others: object) -> Any:
            return SimpleNamespace(epoch=1)

        def lr_step(self, epoch: int) -> None:
            pass

    checkpoint_utils.load_checkpoint(cfg.checkpoint, Trainer())
    assert loaded[:3] == [str(whole), False, False], "fairseq takes the same, with the optimizer"


def test_no_whole_checkpoint_is_one_sentence(folder: Path) -> None:
    paths = [trained(folder, "1_10", 10), trained(folder, "last", 12)]
    for path in paths:
        path.write_bytes(path.read_bytes()[:-1])
    assert refused(configure(folder)) == (
        f"{paths[1]} cannot be used (it was cut off, or is no checkpoint), and {folder / 'save'} has no "
        "other whole checkpoint to go on from; put a copy in its place, or name another --save-dir to begin "
        "anew"
    )


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["--max-update", "12"], "12 updates of --max-update 12"),
        (["--max-update", "11"], "12 updates of --max-update 11"),
        (["--max-epoch", "2"], "2 epochs of --max-epoch 2"),
        (["--max-update", "13", "--max-epoch", "3"], None),
        ([], None),
        (["--max-update", "12", "--reset-optimizer"], None),
        (["--max-epoch", "2", "--reset-dataloader"], None),
    ],
)
def test_a_finished_run_ends_well_at_once(
    flags: list[str], sentence: str | None, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After 12 updates the third epoch is about to begin."""
    trained(folder, "last", 12, epoch=3, iterations_in_epoch=0)
    caplog.set_level(logging.INFO)
    if sentence is None:
        build(configure(folder, *flags))
    else:
        with pytest.raises(SystemExit) as caught:
            build(configure(folder, *flags))
        assert not caught.value.code
        assert f"{folder / 'save'} is finished: {sentence}; nothing was changed" in caplog.text


def test_a_checkpoint_of_elsewhere_is_not_a_finished_run(folder: Path) -> None:
    path = trained(folder, "last", 12)
    build(configure(folder, "--restore-file", path, "--max-update", "12", save_dir="another"))


def test_the_first_process_alone_takes_the_folder(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """N processes of one run share it, and --no-save needs none."""
    (folder / "save").mkdir()
    (folder / "save" / ".checkpoint_last.pt.part").touch()
    caplog.set_level(logging.INFO)
    build(configure(folder, "--distributed-rank", "1", "--distributed-world-size", "2"))
    build(configure(folder, "--no-save"))
    assert not (folder / "save" / ".lock").exists()
    build(configure(folder))
    assert [path.name for path in (folder / "save").iterdir()] == [".lock"]
    assert "save/.checkpoint_last.pt.part, a checkpoint that was not written to its end" in caplog.text
