"""The sweep over rates and seeds: with a stand-in for the fine-tuning, and once through the real scripts."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_glue
import torch
from commands import attempt, run
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler
from test_plots import log
from tiny_model import checkpoint, small

from tupe_fairseq.glue import KNOWN, TASKS, WORD_ORDER, PreparedTask
from tupe_fairseq.glue_plan import OURS, differences, parse_rates, parse_seeds, read_flags, settings
from tupe_fairseq.glue_register import load_sweeps
from tupe_fairseq.glue_results import Result, best_validation, dev_set_name, show_in_tensorboard
from tupe_fairseq.glue_sweep import main
from tupe_fairseq.jobs import gpu_slots

LABELLED = {"train": 40, "valid": 13}
# A stand-in for scripts/finetune_glue.sh TASK GLUE_BIN CHECKPOINT RUN --lr RATE --seed SEED ...
STAND_IN = """
echo "$1 $6 $8" >>calls
echo "a line of output"
mkdir -p "$4/tensorboard"
cp -r valid "$4/tensorboard/"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a sweep can run: RTE and CoLA in bin/, a checkpoint, a recipe, the stand-in, its logs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in ("RTE", "CoLA"):
        prepare(tmp_path, name, LABELLED)
    torch.save(checkpoint(small(variant="tupe_a")), tmp_path / "model.pt")
    (tmp_path / "recipe.args").write_text("--batch-size 8  # a comment\n--lr 1\n")
    (tmp_path / "finetune.sh").write_text(STAND_IN)
    log(tmp_path / "logs", "valid", {5: 0.25, 10: 0.75, 15: 0.5}, key="accuracy")
    log(tmp_path / "logs", "valid", {5: 0.125, 10: 0.0625, 15: 0.25}, key="mcc")
    log(tmp_path / "logs", "valid", {5: 3.0, 10: 2.0, 15: 1.0})
    (tmp_path / "logs" / "tensorboard" / "valid").rename(tmp_path / "valid")
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield tmp_path
    for number, handler in zip(numbers, handlers):
        signal.signal(number, handler)


def prepare(folder: Path, name: str, rows: dict[str, int], vocabulary: str = "v") -> None:
    """As much of a prepared task as a sweep reads."""
    (folder / "bin" / name).mkdir(parents=True, exist_ok=True)
    PreparedTask(KNOWN[name], rows, vocabulary).save(folder / "bin" / name)


def words(*more: str, rates: str = "2e-5 3e-5", seeds: str = "1 2") -> list[str]:
    """A command line; tasks and flags may follow."""
    own = ["--finetune", "finetune.sh", "--config", "recipe.args", "--rates", rates, "--seeds", seeds]
    return [*own, "bin", "model.pt", "runs", *more]


def refused(*more: str, **lists: str) -> str:
    """The sentence with which a sweep ends."""
    with pytest.raises(SystemExit) as exit:
        main(words(*more, **lists))
    assert isinstance(exit.value.code, str), "Python prints it and exits with status 1"
    assert "\n" not in exit.value.code
    return exit.value.code


def calls(folder: Path) -> list[str]:
    """Which runs the stand-in was called for, in order."""
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def result(folder: Path, task: str = "RTE", rate: str = "2e-5", seed: int = 1) -> dict:
    return json.loads((folder / "runs" / task / f"lr-{rate}_seed-{seed}" / "result.json").read_text())


def assert_all_ended(folder: Path) -> None:
    """The processes whose ids are in a file; each would otherwise live for long."""
    pids = [int(pid) for pid in (folder / "pids").read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([process], [], [], 20)[0], f"process {pid} lives"
        os.close(process)


def test_every_rate_with_every_seed_of_every_task(folder: Path, capsys: pytest.CaptureFixture) -> None:
    main(words())
    runs = ["2e-5 1", "3e-5 1", "2e-5 2", "3e-5 2"]
    assert calls(folder) == [f"{task} {run}" for task in ("CoLA", "RTE") for run in runs]
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit(",", 1)[0] for line in lines[:2]] == [
        "[1/8] CoLA, rate 2e-5, seed 1: mcc 25.00",  # at update 15, where the accuracy is not the best
        "[2/8] CoLA, rate 3e-5, seed 1: mcc 25.00",
    ]
    assert lines[7].startswith("[8/8] RTE, rate 3e-5, seed 2: accuracy 75.00, ")
    assert lines[7].endswith(" s")
    train_log = (folder / "runs" / "RTE" / "lr-2e-5_seed-1" / "train.log").read_text()
    own = "--lr 2e-5 --seed 1"
    command = f"bash finetune.sh RTE bin model.pt runs/RTE/lr-2e-5_seed-1 {own}"
    assert train_log == f"== {command}\na line of output\n"


def test_a_result(folder: Path) -> None:
    main(words("RTE", "--", "--max-epoch", "3"))
    found = result(folder, rate="3e-5", seed=2)
    assert found["seconds"] > 0
    settings = found["settings"]
    assert settings["flags"] == {"--batch-size": "8", "--max-epoch": "3"}
    digest = subprocess.run(["sha256sum", "model.pt"], capture_output=True, text=True, check=True).stdout
    assert settings["checkpoint"] == digest.split()[0]
    assert {key: value for key, value in found.items() if key not in ("seconds", "settings")} == {
        **{"task": "RTE", "rate": "3e-5", "seed": 2, "variant": "tupe_a", "update": 10},
        "checkpoint": str(folder / "model.pt"),
        "metrics": {"valid": {"accuracy": 0.75, "loss": 2.0}},
    }


def test_flags_reach_the_run_last(folder: Path) -> None:
    (folder / "finetune.sh").write_text(STAND_IN + 'printf "%s\\n" "${@:5}" "$CONFIG" "$NPROC" >given\n')
    main(words("RTE", "--", "--max-epoch", "3", "--fp16", rates="2e-5", seeds="1"))
    given = ["--lr", "2e-5", "--seed", "1", "--max-epoch", "3", "--fp16", "recipe.args", "1"]
    assert (folder / "given").read_text().splitlines() == given


def test_what_is_finished_is_not_done_again(folder: Path, capsys: pytest.CaptureFixture) -> None:
    main(words("RTE", seeds="1"))
    capsys.readouterr()
    main(words("RTE", rates="2e-05 0.00004", seeds="1 3"))
    assert calls(folder)[2:] == ["RTE 4e-5 1", "RTE 2e-5 3", "RTE 4e-5 3"]
    assert "[1/4] RTE, rate 2e-5, seed 1: accuracy 75.00, finished before\n" in capsys.readouterr().out
    planned = ["lr-2e-5_seed-1", "lr-3e-5_seed-1", "lr-4e-5_seed-1", "lr-2e-5_seed-3", "lr-4e-5_seed-3"]
    assert load_sweeps(folder / "runs")["RTE"].runs == planned, "of both commands"


@pytest.mark.parametrize(
    "how, reason", [("exit 3", "status 3"), ("rm -r $4/tensorboard", "no TensorBoard logs")]
)
def test_a_failed_run_is_named_and_the_others_go_on(
    how: str, reason: str, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    (folder / "finetune.sh").write_text(STAND_IN + f'[[ "$6 $8" != "2e-5 1" ]] || {how}\n')
    sentence = refused("RTE")
    where = "runs/RTE/lr-2e-5_seed-1/train.log"
    assert sentence == f"sweep_glue: 1 of 4 runs failed: RTE, rate 2e-5, seed 1 ({where})"
    assert f"[1/4] RTE, rate 2e-5, seed 1: failed: {reason}" in capsys.readouterr().out
    assert len(calls(folder)) == 4
    (folder / "finetune.sh").write_text(STAND_IN)
    main(words("RTE"))
    assert calls(folder)[4:] == ["RTE 2e-5 1"]
    assert "seed 1: accuracy 75.00" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_the_trainings_too(name: str, folder: Path, capsys: pytest.CaptureFixture) -> None:
    """The stand-in of the second run sends it to the sweep, and would then work for ever."""
    number = signal.Signals[name]
    signal.signal(number, signal.SIG_DFL)  # which background jobs of a shell may ignore
    for_ever = f"""
if [[ "$6 $8" == "3e-5 1" && ! -e pids ]]; then
  sleep 100 & echo $$ $! >pids
  kill -{number.value} $PPID; wait
fi
"""
    (folder / "finetune.sh").write_text(for_ever + STAND_IN)
    with pytest.raises(SystemExit) as exit:
        main(words("RTE"))
    assert exit.value.code == 128 + number
    assert capsys.readouterr().err == f"sweep_glue: stopped by {name}; the same command goes on\n"
    assert_all_ended(folder)
    assert calls(folder) == ["RTE 2e-5 1"]
    main(words("RTE"))
    assert calls(folder)[1:] == ["RTE 3e-5 1", "RTE 2e-5 2", "RTE 3e-5 2"]


def sweep_command(*more: str) -> list[str]:
    return [sys.executable, "-m", "tupe_fairseq.glue_sweep", *words(*more)]


@pytest.mark.slow
def test_a_killed_sweep_takes_its_trainings_along(folder: Path, root: Path) -> None:
    """Though it can do nothing about it any more."""
    (folder / "finetune.sh").write_text("sleep 30 & echo $$ $! >pids; kill -KILL $PPID; wait; touch end\n")
    assert attempt(*sweep_command("RTE"), cwd=folder, PYTHONPATH=str(root)).returncode == -signal.SIGKILL
    with (folder / "runs" / ".lock").open() as lock:  # which they inherited
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert_all_ended(folder)
    assert not (folder / "end").exists()
    (folder / "finetune.sh").write_text(STAND_IN)
    main(words("RTE"))
    assert len(calls(folder)) == 4


@pytest.mark.slow
def test_two_sweeps_do_not_work_in_one_folder(
    folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training of the first starts the second."""
    monkeypatch.setenv("PYTHONPATH", str(root))
    command = " ".join(f"'{word}'" for word in sweep_command("CoLA"))
    (folder / "finetune.sh").write_text(STAND_IN + f"[[ $1 != RTE ]] || {command} || true\n")
    main(words("RTE", rates="2e-5", seeds="1"))
    train_log = (folder / "runs" / "RTE" / "lr-2e-5_seed-1" / "train.log").read_text()
    sentence = "another sweep works in runs; wait for its end, or name another RUNS"
    assert train_log.endswith(f"sweep_glue: {sentence}\n")
    assert calls(folder) == ["RTE 2e-5 1"]


def test_other_settings_are_refused(folder: Path) -> None:
    main(words("RTE", "--", "--fp16"))
    start = "sweep_glue: runs/RTE was swept with other settings ("
    end = "); name another RUNS"
    assert refused("RTE") == f"{start}--fp16 there, no --fp16 here{end}"
    sentence = refused("RTE", "--", "--fp16", "--batch-size=4", rates="5e-5")
    assert sentence == f"{start}--batch-size 8 there, --batch-size 4 here{end}"
    prepare(folder, "RTE", {**LABELLED, "train": 41})
    assert refused("RTE", "--", "--fp16") == f"{start}other data{end}"
    prepare(folder, "RTE", LABELLED)
    torch.save(checkpoint(small(variant="tupe_r")), folder / "model.pt")
    assert refused("RTE", "--", "--fp16") == f"{start}another checkpoint{end}"
    (folder / "runs" / "sweep.json").unlink()
    sentence = refused("RTE", "--", "--fp16")
    assert sentence == f"{start}another checkpoint{end}".replace("runs/RTE", "runs/RTE/lr-2e-5_seed-1")
    assert len(calls(folder)) == 4
    main(words("CoLA"))
    assert len(calls(folder)) == 8, "of another task, nothing was done with other settings"


def test_the_same_model_elsewhere_is_the_same(folder: Path) -> None:
    main(words("RTE"))
    shutil.copy("model.pt", "copy.pt")
    main([word.replace("model.pt", "copy.pt") for word in words("RTE")])
    assert len(calls(folder)) == 4


def test_a_training_of_someone_else_is_not_gone_on_with(folder: Path) -> None:
    where = folder / "runs" / "RTE" / "lr-2e-5_seed-1"
    where.mkdir(parents=True)
    torch.save(checkpoint(small()), where / "checkpoint_last.pt")
    assert "lr-2e-5_seed-1 holds a training that no sweep started; name another RUNS" in refused()
    assert calls(folder) == []


@pytest.mark.parametrize("left", ["whole", "cut", "none"])
def test_a_cut_run_goes_on_or_starts_anew(left: str, folder: Path, capsys: pytest.CaptureFixture) -> None:
    """From the whole checkpoint of its own; what else it left must not count as measured."""
    (folder / "finetune.sh").write_text(STAND_IN + "exit 1\n")
    refused("RTE", rates="2e-5", seeds="1")
    where = folder / "runs" / "RTE" / "lr-2e-5_seed-1"
    (where / "tensorboard" / "old").mkdir()
    last = where / "checkpoint_last.pt"
    content = (folder / "model.pt").read_bytes()
    if left != "none":
        last.write_bytes(content if left == "whole" else content[: len(content) // 2])
    (folder / "finetune.sh").write_text(STAND_IN)
    main(words("RTE", rates="2e-5", seeds="1"))
    assert last.exists() == (where / "tensorboard" / "old").exists() == (left == "whole")
    assert ("it was cut off, or is no checkpoint); that run starts anew" in capsys.readouterr().out) == (
        left == "cut"
    )
    assert len(calls(folder)) == 2


def test_one_run_on_each_gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in lists two. A run that finds its GPU taken fails; and the first two wait for one another."""
    listed = "GPU 0: A (UUID: GPU-1)\\n  MIG 1g.10gb Device 0: (UUID: MIG-1)\\nGPU 1: A (UUID: GPU-2)\\n"
    (folder / "nvidia-smi").write_text(f'#!/bin/sh\n[ "$*" = --list-gpus ] && printf "{listed}"\n')
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    os.mkfifo(folder / "both")
    (folder / "finetune.sh").write_text(
        """
set -e
mkdir "taken-$CUDA_VISIBLE_DEVICES"
case "$6 $8" in
  "2e-5 1") timeout 60 bash -c 'echo >both' ;;
  "3e-5 1") timeout 60 cat both ;;
esac
"""
        + STAND_IN
        + 'echo "$CUDA_VISIBLE_DEVICES" >>gpus\nrmdir "taken-$CUDA_VISIBLE_DEVICES"\n'
    )
    main(words("RTE"))
    assert Counter((folder / "gpus").read_text().split()).keys() == {"0", "1"}
    assert len(calls(folder)) == 4


def test_one_after_the_other_on_the_cpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where GPUs are named, but --cpu is given."""
    (folder / "finetune.sh").write_text("set -e\nmkdir taken\n" + STAND_IN + "rmdir taken\n")
    main(words("RTE"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    main(words("CoLA", "--", "--cpu"))
    assert len(calls(folder)) == 8


@pytest.mark.parametrize(
    "named, gpus", [("3,1", ["3", "1"]), ("", []), ("-1", []), ("MIG-a, MIG-b", ["MIG-a", "MIG-b"])]
)
def test_gpus_that_are_named(named: str, gpus: list[str]) -> None:
    slots = gpu_slots({"CUDA_VISIBLE_DEVICES": named})
    assert slots == ([{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus] or [{}])


def test_a_dry_run_prints_what_is_left_to_do(folder: Path, capsys: pytest.CaptureFixture) -> None:
    main(words("RTE", rates="2e-5", seeds="1"))
    before = sorted(folder.rglob("*"))
    capsys.readouterr()
    main([*words("RTE", seeds="1"), "--dry-run"])
    where = "runs/RTE/lr-3e-5_seed-1"
    assert capsys.readouterr().out == f"bash finetune.sh RTE bin model.pt {where} --lr 3e-5 --seed 1\n"
    assert sorted(folder.rglob("*")) == before


def test_tasks_that_cannot_be_trained_on_are_said(folder: Path, capsys: pytest.CaptureFixture) -> None:
    prepare(folder, "AX", {"test": 3})
    prepare(folder, "MRPC", {"train": 3, "test": 3})
    prepare(folder, WORD_ORDER.name, LABELLED)
    main(words(rates="2e-5", seeds="1"))
    said = "left out, not of GLUE or without train or dev rows: AX, MRPC, WordOrder\n"
    assert capsys.readouterr().err == said
    assert calls(folder) == ["CoLA 2e-5 1", "RTE 2e-5 1"]
    main(words(WORD_ORDER.name, rates="2e-5", seeds="1"))
    assert calls(folder)[2:] == ["WordOrder 2e-5 1"], "where it is named"


@pytest.mark.parametrize(
    "more, lists, sentence",
    [
        (["XYZ"], {}, "no task 'XYZ'; there are CoLA,"),
        (["RTE", "RTE"], {}, "the tasks name RTE twice"),
        (["MRPC"], {}, "no bin/MRPC/task.json; scripts/prepare_glue.sh makes it"),
        (["AX"], {}, "bin/AX lacks rows to train on, or to validate on; leave AX out"),
        ([], {"rates": "2e-5 2e-05"}, "RATES name 2e-5 twice"),
        ([], {"rates": "fast"}, "RATES='fast' are no learning rates"),
        ([], {"rates": "0"}, "RATES='0' are no learning rates"),
        ([], {"rates": "nan"}, "RATES='nan' are no learning rates"),
        ([], {"rates": " "}, "RATES=' ' are no learning rates"),
        ([], {"seeds": "1 01"}, "SEEDS name 1 twice"),
        ([], {"seeds": "-1"}, "SEEDS='-1' are no seeds"),
        (["--", "--lr", "1"], {}, "--lr is not for a sweep: RATES has the rates"),
        (["--", "--save-dir=x"], {}, "--save-dir is not for a sweep: RUNS has a folder for each run"),
        (["--", "fp16"], {}, "'fp16' is no flag of fairseq-train"),
        (["--fp16"], {}, "--fp16 is not known here; flags of fairseq-train stand behind --"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    more: list[str], lists: dict[str, str], sentence: str, folder: Path
) -> None:
    prepare(folder, "AX", {"test": 3})
    assert refused(*more, **lists).startswith(f"sweep_glue: {sentence}")
    assert not (folder / "runs").exists()


def test_rates_and_seeds_have_one_name_each() -> None:
    assert parse_rates("2e-5 0.00003 4.50E-05 0.1") == ["2e-5", "3e-5", "4.5e-5", "1e-1"]
    assert parse_seeds("0 7 010") == [0, 7, 10]


@pytest.mark.parametrize("flag", OURS)
def test_what_the_sweep_decides_is_refused(flag: str, tmp_path: Path) -> None:
    """Given, and in the recipe, but for a rate and a seed there."""
    recipe = tmp_path / "recipe.args"
    recipe.write_text("")
    with pytest.raises(ValueError, match=f"^{flag} is not for a sweep: "):
        read_flags(recipe, [flag, "1"])
    recipe.write_text(f"{flag} 1\n")
    if flag in ("--lr", "--seed"):
        assert read_flags(recipe, []) == {}
    else:
        with pytest.raises(ValueError, match=rf"^{flag} \(in .*recipe.args\) is not for a sweep: "):
            read_flags(recipe, [])


@pytest.mark.parametrize("change", [{"digest": "b"}, {"vocabulary": "w"}, {"rows": {"train": 6}}])
def test_other_data_is_another_setting(change: dict) -> None:
    prepared = PreparedTask(KNOWN["RTE"], {"train": 5}, "v", "a")
    there, here = (settings(data, "c", {}) for data in (prepared, replace(prepared, **change)))
    assert differences(there, here) == "other data"


def test_flags_of_the_recipe_and_those_given(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.args"
    recipe.write_text("# all\n--adam-betas (0.9,0.999)  # two\n--lr 5e-5\n--fp16\n--patience -1\n")
    flags = {"--adam-betas": "(0.9,0.999)", "--fp16": "", "--patience": "-1"}
    assert read_flags(recipe, []) == flags
    assert read_flags(recipe, ["--patience", "2", "--patience=3"]) == {**flags, "--patience": "3"}


def test_settings_that_do_not_differ() -> None:
    settings = {"checkpoint": "a", "data": {"rows": {}}, "flags": {"--fp16": ""}}
    assert differences(settings, dict(settings)) == ""


def test_the_last_of_equal_validations_is_the_best(tmp_path: Path) -> None:
    """As fairseq saves checkpoint_best.pt; and the values of all dev sets are of that update."""
    for step, (first, second, loss) in {
        3: (0.5, 1.0, 7.0),
        6: (0.5, 0.25, 8.0),
        9: (0.25, 0.75, 9.0),
    }.items():
        log(tmp_path, "valid", {step: first}, key="accuracy")
        log(tmp_path, "valid", {step: loss})
        log(tmp_path, "valid", {step: 4.0}, key="best_accuracy")
        log(tmp_path, "valid1", {step: second}, key="accuracy")
        log(tmp_path, "valid1", {step: second / 2}, key="batch_mean_accuracy")
    found = {"accuracy": 0.25, "batch_mean_accuracy": 0.125}
    assert best_validation(tmp_path, ["valid", "valid1"], ["accuracy"]) == (
        6,
        {"valid": {"accuracy": 0.5, "loss": 8.0}, "valid1": found},
    )


def test_a_validation_without_a_metric_is_named(tmp_path: Path) -> None:
    log(tmp_path, "valid", {3: 0.5}, key="accuracy")
    with pytest.raises(ValueError, match=r"have no mcc of valid$"):
        best_validation(tmp_path, ["valid"], ["mcc"])
    log(tmp_path, "valid1", {2: 0.5}, key="accuracy")
    with pytest.raises(ValueError, match=r"has no accuracy of valid1 at update 3, its best validation$"):
        best_validation(tmp_path, ["valid", "valid1"], ["accuracy"])


def test_names_of_dev_sets() -> None:
    names = [dev_set_name(TASKS["MNLI"], split) for split in ("valid", "valid1")]
    assert names == ["MNLI-m", "MNLI-mm"]
    assert dev_set_name(TASKS["STS-B"], "valid") == "STS-B"
    assert dev_set_name(WORD_ORDER, "valid") == "WordOrder"


def a_result(task: str, metrics: dict[str, dict[str, float]], rate: str = "2e-5", seed: int = 1) -> Result:
    return Result(KNOWN[task], rate, seed, "tupe_r", "model.pt", {}, 10, metrics, 1.0)


def session_groups(logdir: Path) -> dict[str, tuple[dict, dict]]:
    """TensorBoard's table of hyperparameters, as its own code fills it: settings and metrics by run."""
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    provider, request = MultiplexerDataProvider(multiplexer, str(logdir)), RequestContext()
    context = Context(TBContext(data_provider=provider))
    infos = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=100,
        allowed_statuses=[api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_SUCCESS, api_pb2.STATUS_RUNNING],
    )
    groups = Handler(request, context, "", infos).run().session_groups
    return {
        group.sessions[0].name: (
            {name: value.string_value or value.number_value for name, value in group.hparams.items()},
            {metric.name.tag: metric.value for metric in group.metric_values},
        )
        for group in groups
    }


def test_tensorboard_has_a_row_for_each_run(tmp_path: Path) -> None:
    """Columns of all metrics, whichever run it reads first; what is written again replaces the old."""
    for name, metrics in {
        "RTE": {"valid": {"accuracy": 0.5}},
        "CoLA": {"valid": {"mcc": 0.25, "accuracy": 0.75}},
        "MNLI": {"valid": {"accuracy": 0.5}, "valid1": {"accuracy": 0.625}},
    }.items():
        for _ in range(2):
            show_in_tensorboard(tmp_path / name, a_result(name, metrics), "32")
        assert len(list((tmp_path / name / "tensorboard" / "hparams").iterdir())) == 1
    settings = {"lr": 2e-5, "seed": 1.0, "variant": "tupe_r", "batch_size": 32.0}
    assert session_groups(tmp_path) == {
        "RTE/tensorboard/hparams": ({"task": "RTE", **settings}, {"hparam/accuracy": 0.5}),
        "CoLA/tensorboard/hparams": (
            {"task": "CoLA", **settings},
            {"hparam/accuracy": 0.75, "hparam/mcc": 0.25},
        ),
        "MNLI/tensorboard/hparams": (
            {"task": "MNLI", **settings},
            {"hparam/accuracy": 0.5, "hparam/accuracy (MNLI-mm)": 0.625},
        ),
    }


# A Python in front of the real one on PATH. At first, the run at 3e-5 with seed 1 ends after an epoch; then
# sweep, the parent of its script, in whose place Python is, ends, and the run would go on for ever.
CUTTING = """#!/usr/bin/env bash
set -e
[[ "$2" == tupe_fairseq.train ]] || exec "{real}" "$@"
echo "$*" >>calls
if [[ " $* " != *" --lr 3e-5 --seed 1 "* || -e cut ]]; then
  exec "{real}" "$@"
fi
touch cut
"{real}" "$@" --max-epoch 1
kill -TERM "$PPID"
sleep 1000
"""


@pytest.fixture
def real(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the real scripts need: RTE in bin/, and a pre-trained model."""
    corpus = tiny_glue.make_corpus(tmp_path / "corpus")
    tiny_glue.make_rte(tmp_path, corpus)
    (corpus / "bin").mkdir()
    shutil.copy(corpus / "dict.txt", corpus / "bin")
    for split in ("train", "valid"):
        for end in ("bin", "idx"):
            shutil.copy(
                tmp_path / "bin" / "RTE" / "input0" / f"train.{end}", corpus / "bin" / f"{split}.{end}"
            )
    short = ("--max-update", "1", "--total-num-update", "1", "--warmup-updates", "0", "--batch-size", "4")
    run("bash", root / "scripts" / "pretrain.sh", "corpus", "model", *short, cwd=tmp_path, ARCH="tupe_r_tiny")
    (tmp_path / "first").mkdir()
    bin_folder = Path(sys.executable).parent
    (tmp_path / "first" / "python").write_text(CUTTING.format(real=sys.executable))
    (tmp_path / "first" / "python").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}:{bin_folder}:{os.environ['PATH']}")
    monkeypatch.setenv("VENV", str(tmp_path / "none"))  # whose commands would come before those on PATH
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


@pytest.mark.slow
def test_through_the_real_scripts(real: Path, root: Path) -> None:
    """Two rates, two seeds; the second run is cut after its first epoch, and goes on in a second sweep."""
    flags = ("--", "--batch-size", "10", "--max-epoch", "2", "--num-workers", "0")
    command = ("bash", root / "scripts" / "sweep_glue.sh", "bin", "model/checkpoint_last.pt", "runs", *flags)
    lists = {"RATES": "2e-5 3e-5", "SEEDS": "1 2", "PATH": os.environ["PATH"]}
    first = attempt(*command, cwd=real, **lists)
    assert first.returncode == 128 + signal.SIGTERM, first.stdout
    assert first.stdout.splitlines()[-1] == "sweep_glue: stopped by SIGTERM; the same command goes on"
    results = [
        real / "runs" / "RTE" / f"lr-{rate}_seed-{seed}" for seed in (1, 2) for rate in ("2e-5", "3e-5")
    ]
    assert [(run / "result.json").exists() for run in results] == [True, False, False, False]
    output = run(*command, cwd=real, **lists)
    assert re.findall(
        r"^\[(\d)/4\] RTE, rate (.e-5), seed (\d): accuracy [\d.]+, ", output, re.MULTILINE
    ) == [
        ("1", "2e-5", "1"),
        ("2", "3e-5", "1"),
        ("3", "2e-5", "2"),
        ("4", "3e-5", "2"),
    ]
    called = [re.findall(r" --lr (\S+) --seed (\S+)", line)[-1] for line in calls(real)]
    runs = [("2e-5", "1"), ("3e-5", "1"), ("3e-5", "1"), ("2e-5", "2"), ("3e-5", "2")]
    assert called == runs, "the cut one twice"
    cut = (results[1] / "train.log").read_text()
    assert "Loaded checkpoint runs/RTE/lr-3e-5_seed-1/checkpoint_last.pt (epoch 2 @ 4 updates)" in cut
    for folder in results:
        assert_best(folder)
    assert len(session_groups(real / "runs")) == 4
    table = run(sys.executable, "-m", "tupe_fairseq.glue", "report", "runs", cwd=real, PYTHONPATH=str(root))
    row = re.findall(
        r"^\| RTE \| accuracy \| .e-5 \| [\d.]+ \| .* \| 2 \| 4/4 \| 73.56 \|$", table, re.MULTILINE
    )
    assert len(row) == 1
    dry = run(*command, cwd=real, **lists, DRY_RUN="1")
    assert dry == "", "nothing is left to do"


def assert_best(folder: Path) -> None:
    """The result of a run of two epochs of four updates is that of fairseq's best checkpoint."""
    found = json.loads((folder / "result.json").read_text())
    state = torch.load(folder / "checkpoint_best.pt")
    assert found["update"] == state["optimizer_history"][-1]["num_updates"]
    assert found["metrics"]["valid"]["accuracy"] == pytest.approx(state["extra_state"]["best"], abs=1e-7)
    assert torch.load(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 8


def test_the_script_explains_itself(root: Path, tmp_path: Path) -> None:
    output = run("bash", root / "scripts" / "sweep_glue.sh", "-h", cwd=tmp_path)
    assert "bash scripts/sweep_glue.sh GLUE_BIN CHECKPOINT RUNS [TASK...]" in output
    failed = attempt("bash", root / "scripts" / "sweep_glue.sh", "bin", cwd=tmp_path)
    assert (failed.returncode, failed.stdout) == (
        1,
        "sweep_glue: needs GLUE_BIN, CHECKPOINT and RUNS (see -h)\n",
    )
