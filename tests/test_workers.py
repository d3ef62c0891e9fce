"""Processes that train one model: what each is told, why one ended, and gradients that DDP can wait for."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import started
from tiny_model import VOCAB, small
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from tupe_fairseq import train, workers
from tupe_fairseq.variants import VARIANTS

ON_CPU = ["--cpu", "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
EVERYWHERE = "--load-checkpoint-on-all-dp-ranks"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four, as far as anyone asks."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.fixture
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_processes_of_this_machine_without_gpus(no_gpus: None) -> None:
    assert workers.local_workers([], {}) == 1
    assert workers.local_workers([], {"NPROC": "3"}) == 3


def test_processes_of_this_machine_with_gpus(gpus: None) -> None:
    assert workers.local_workers([], {}) == 4
    assert workers.local_workers(["--cpu"], {}) == 1
    assert workers.local_workers([], {"NPROC": "2"}) == 2
    assert workers.local_workers(["--cpu"], {"NPROC": "9"}) == 9
    assert workers.local_workers([], {"WORLD_SIZE": "16"}) == 1, "this is one of them"
    assert workers.local_workers(["--distributed-world-size", "2"], {}) == 1, "the user has started both"


@pytest.mark.parametrize(
    "environment, flags, sentence",
    [
        ({"NPROC": "0"}, [], "NPROC=0 is no number of processes; give 1 or more"),
        ({"NPROC": "-1"}, [], "NPROC=-1 is no number of processes; give 1 or more"),
        ({"NPROC": "5"}, [], "NPROC=5, and this machine has 4 GPUs that torch can use"),
        ({"NPROC": "2", "WORLD_SIZE": "2"}, [], "NPROC=2 starts processes, and torchrun"),
        ({"NPROC": "2"}, ["--distributed-world-size", "2"], "NPROC=2 starts processes, and torchrun"),
    ],
)
def test_numbers_that_cannot_be(gpus: None, environment: dict, flags: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        workers.local_workers(flags, environment)


def test_what_fairseq_is_told_on_gpus(gpus: None) -> None:
    """It takes the number of its GPU from LOCAL_RANK."""
    assert workers.worker_flags([], {}) == [EVERYWHERE, "--distributed-world-size", "1"]
    second = [EVERYWHERE, "--distributed-world-size", "16", "--distributed-rank", "9"]
    second += ["--distributed-init-method", "env://", "--distributed-no-spawn"]
    environment = {"WORLD_SIZE": "16", "RANK": "9"}
    assert workers.worker_flags([], environment) == second
    assert workers.worker_flags(["--cpu"], environment) == second + ON_CPU
    assert workers.worker_flags(["--distributed-port", "1"], environment) == [EVERYWHERE]


def test_what_fairseq_is_told_on_the_cpu(no_gpus: None) -> None:
    assert workers.worker_flags([], {}) == [EVERYWHERE, "--distributed-world-size", "1"]
    assert workers.worker_flags([], {"WORLD_SIZE": "2", "RANK": "0"})[-5:] == ON_CPU


def word(sentence: str) -> dict[str, Any]:
    return {"message": sentence, "extraInfo": {"timestamp": "1"}}


@pytest.mark.parametrize(
    "ended, sentence",
    [
        ({0: (-15, None), 1: (1, word("no file a"))}, "no file a"),
        ({0: (1, word("no file a")), 1: (1, word("no file a"))}, "no file a"),
        ({0: (1, None), 1: (-9, None)}, "worker 1 of 2 was ended by SIGKILL (the system does that where"),
        (
            {0: (-15, None), 1: (-11, None)},
            "worker 1 of 2 was ended by SIGSEGV, and the others with it; the s",
        ),
        ({0: (-15, None), 1: (3, None)}, "worker 1 of 2 ended with status 3; what it said stands above"),
        ({1: (-15, None)}, "worker 1 of 2 was ended by SIGTERM, and the others with it"),
    ],
)
def test_the_cause_is_told_and_not_what_came_of_it(ended: dict, sentence: str) -> None:
    assert workers.explain(ended, 2).startswith(sentence)


def test_last_words_are_left_for_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Or printed, with the name of the command, where nobody listens; others' errors stay tracebacks."""

    def refuse(given: list[str]) -> None:
        workers.check_workers(1, {"WORLD_SIZE": "2"})

    monkeypatch.setattr(sys, "argv", ["train.py", "--cpu"])
    monkeypatch.setattr(train, "train", refuse)
    monkeypatch.setenv("TUPE_COMMAND", "pretrain")
    with pytest.raises(SystemExit, match=r"^pretrain: 2 processes were started together \(WORLD_SIZE\)"):
        train.main()
    monkeypatch.setenv(workers.ERROR_FILE, str(tmp_path / "error.json"))
    with pytest.raises(SystemExit) as ended:
        train.main()
    assert ended.value.code == 1, "nothing to print"
    left = json.loads((tmp_path / "error.json").read_text())["message"]
    assert left["message"].startswith("2 processes were started together")
    monkeypatch.setattr(train, "train", lambda given: torch.zeros(2).view(3))
    with pytest.raises(RuntimeError, match="shape"):
        train.main()
    monkeypatch.setattr(train, "train", lambda given: [].index(1))
    with pytest.raises(ValueError, match="not in list"):
        train.main()


def test_a_log_has_sentences_only(caplog: pytest.LogCaptureFixture) -> None:
    """fairseq logs its configuration and the model as objects, over many lines."""
    logger = logging.getLogger("fairseq_cli.train")
    filters, silenced = logger.filters[:], logging.getLogger("fairseq.tasks.fairseq_task")
    level = silenced.level
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            train.quieten()
            warnings.warn("'pin_memory' argument is set as true but no accelerator is found", stacklevel=1)
            warnings.warn("something else", stacklevel=1)
        logger.warning({"the": "configuration"})
        logger.warning("training on %s devices", 2)
    finally:
        logger.filters[:] = filters
        silenced.setLevel(level)
    assert [record.getMessage() for record in caplog.records] == ["training on 2 devices"]
    assert [str(warning.message) for warning in told] == ["something else"]


# What DistributedDataParallel asks of a model


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def twice(model: torch.nn.Module, **arguments: Any) -> None:
    """Two updates; torch refuses the second where a parameter of the first had no gradient."""
    wrapped = DistributedDataParallel(model)
    tokens = torch.randint(4, VOCAB, (3, 12))
    for _ in range(2):
        wrapped(tokens, **arguments)[0].logsumexp(-1).sum().backward()


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_parameter_is_unused_in_pretraining(group: None, variant: str) -> None:
    """Rows of thetas included; so torch's own backend, fairseq's default on GPUs, needs no more flags."""
    masked = torch.zeros(3, 12, dtype=torch.bool)
    masked[:, 3] = True
    twice(small(variant=variant), masked_tokens=masked)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_parameter_is_unused_in_fine_tuning(group: None, variant: str) -> None:
    """The LM head is, so the task freezes it (test_sentence_prediction.py); else torch would refuse."""
    model = small(variant=variant)
    model.register_classification_head("head", 2)
    model.lm_head.requires_grad_(False)
    twice(model, classification_head_name="head")
    model.lm_head.requires_grad_(True)
    with pytest.raises(RuntimeError, match="parameters that were not used"):
        twice(model, classification_head_name="head")


# torchrun's engine

IDLE = """
import os, signal
os.write(1, f"{os.environ['RANK']} {os.environ['OMP_NUM_THREADS']}\\n".encode())  # in one piece
signal.pause()
"""
LAUNCH = "from tupe_fairseq.workers import launch; launch(2, 'idle', [])"


@pytest.mark.slow
def test_a_signal_ends_all_processes(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "idle.py").write_text(IDLE)
    monkeypatch.setenv("PYTHONPATH", f"{root}:{tmp_path}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with started(args=[sys.executable, "-c", LAUNCH], stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        assert {process.stdout.readline(), process.stdout.readline()} == {"0 1\n", "1 1\n"}
        process.terminate()
        rest, _ = process.communicate(timeout=60)
        assert rest == "", "at the end, which comes when all have ended"
        assert process.returncode == 128 + signal.SIGTERM
