"""Training as the authors' code trains, update by update; see golden/trajectories/README.md there.

All but the batches is what fairseq-train makes of our recipes: its parser, its Trainer, our plugin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fairseq_cli.train
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fairseq import tasks
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from torch import Tensor
from trajectories import configure, load, prepare, weights

from tupe_fairseq.vocabulary import PAD

pytestmark = [  # of fairseq's own code, with newer versions of hydra and torch
    pytest.mark.filterwarnings("ignore::UserWarning:hydra"),
    pytest.mark.filterwarnings("ignore:[\n ]*'config' is validated:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
]
TRAININGS = ["pretrain", "finetune_cls", "finetune_reg"]
TOLERANCES = {  # of their README, absolute and relative
    torch.float64: {
        **dict.fromkeys(["loss_sum", "grad_norm", "loss", "pearson", "pearson_spearman"], (1e-10, 0)),
        **dict.fromkeys(["accuracy", "f1", "mcc", "acc_f1", "spearman"], (1e-12, 0)),
        **{"weights": (1e-11, 0), "lr": (1e-15, 0)},
    },
    torch.float32: {
        **dict.fromkeys(["loss", "pearson", "pearson_spearman"], (1e-5, 0)),
        **dict.fromkeys(["accuracy", "f1", "mcc", "acc_f1", "spearman"], (1e-6, 0)),
        **{"loss_sum": (4e-5, 0), "grad_norm": (0, 1e-5), "weights": (6e-6, 0), "lr": (1e-10, 0)},
    },
}


@pytest.fixture(autouse=True)
def fresh_meters() -> Iterator[None]:
    metrics.reset()
    yield
    metrics.reset()


def remove_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes fairseq's casts to float32 out of a float64 run, as the authors' were out of theirs.

    They are in the log-softmax of its masked LM criterion, in the norm that it clips by, and in the number of
    targets, a tensor, by which its Trainer divides the gradients. Nothing else is replaced.
    """

    def without_dtype(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda *args, dtype=None, **options: function(*args, **options)

    monkeypatch.setattr(F, "log_softmax", without_dtype(F.log_softmax))
    monkeypatch.setattr(torch, "norm", without_dtype(torch.norm))
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def build(cfg: Any, start: dict[str, np.ndarray], dtype: torch.dtype) -> Trainer:
    """What fairseq-train trains with, its first epoch begun."""
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model).to(dtype)
    model.load_state_dict({key: torch.from_numpy(value) for key, value in start.items()}, strict=True)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.begin_epoch(1)
    return trainer


def batch(tokens: np.ndarray, target: np.ndarray, first: int = 0, split_rows: int = 0) -> dict[str, Any]:
    """A batch as our tasks make it, of tokens (B, T); its rows are those of the split from `first` on."""
    lengths = torch.from_numpy(tokens != PAD).sum(dim=1)
    return {
        "id": torch.arange(first, first + len(tokens)),
        "net_input": {"src_tokens": torch.from_numpy(tokens), "src_lengths": lengths},
        "target": torch.from_numpy(target),
        **{"nsentences": len(tokens), "ntokens": int(lengths.sum()), "split_rows": split_rows},
    }


def close(actual: Any, expected: Any, tolerance: tuple[float, float], what: str) -> None:
    absolute, relative = tolerance
    np.testing.assert_allclose(actual, expected, atol=absolute, rtol=relative, err_msg=what)


def check_weights(
    trainer: Trainer, expected: dict[str, np.ndarray], tolerance: tuple[float, float], when: str
) -> None:
    state = trainer.get_model().state_dict()
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        close(state[key], value, tolerance, f"{key} {when}")


def check_validation(trainer: Trainer, golden: dict[str, np.ndarray], prefix: str, tolerances: dict) -> None:
    """Loss and metrics of all rows, in batches of 12 here and in a single one there, and means of batches."""
    tokens, label = golden["input/valid/tokens"], golden["input/valid/label"]
    with metrics.aggregate(new_root=True) as meters:
        for i in range(0, len(label), 12):
            trainer.valid_step(batch(tokens[i : i + 12], label[i : i + 12], i, len(label)))
    task = trainer.task.prepared.task
    found = {name: meters.get_smoothed_value(name) for name in task.metrics}
    found["loss"] = meters["loss"].avg / (math.log(2) if task.regression else 1)  # theirs is in bits for both
    for name, value in found.items():
        close(value, golden[f"{prefix}whole/{name}"], tolerances[name], name)
    for name in task.metrics:
        mean = meters.get_smoothed_value(f"batch_mean_{name}")
        close(mean, golden[f"{prefix}bs12/official_validate/{name}"], tolerances[name], f"mean of {name}")


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("variant", ["tupe_a", "tupe_r"])
@pytest.mark.parametrize("training", TRAININGS)
def test_training_is_the_authors(
    shared_data: Path,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    training: str,
    variant: str,
    dtype: torch.dtype,
) -> None:
    if dtype == torch.float64:
        remove_casts(monkeypatch)
    golden, stored = load(shared_data, f"{training}_{variant}")
    tolerances, prefix = TOLERANCES[dtype], f"expected/{'f64' if dtype == torch.float64 else 'f32'}/"
    start = weights(golden, "param/")
    trainer = build(configure(root, prepare(tmp_path / "data", stored, monkeypatch), stored), start, dtype)
    if training != "pretrain":  # the authors' first update has the rate of the second; see the next test
        trainer.optimizer.set_lr(stored["lr_peak"] / stored["warmup_updates"])
    targets = golden[f"input/train/{'target' if training == 'pretrain' else 'label'}"]
    unit = 1 if training == "finetune_reg" else math.log(2)  # nats, of the bits that are logged
    compared = []
    for u, rows in enumerate(golden["input/train/rows"]):
        close(trainer.get_lr(), golden["expected/lr"][u], tolerances["lr"], f"lr of update {u + 1}")
        with metrics.aggregate(new_root=True) as meters:
            trainer.train_step([batch(golden["input/train/tokens"][u, :rows], targets[u, :rows])])
        assert meters["loss"].count == golden["expected/sample_size"][u]
        for name, value in (("loss_sum", meters["loss"].sum * unit), ("grad_norm", meters["gnorm"].val)):
            close(value, golden[prefix + name][u], tolerances[name], f"{name} of update {u + 1}")
        if expected := weights(golden, f"{prefix}param_after_{u + 1}/"):
            check_weights(trainer, expected, tolerances["weights"], f"after update {u + 1}")
            compared.append(u + 1)
    assert compared == [1, 2, 10, stored["updates"]]
    assert trainer.get_lr() == golden["expected/lr_after_last"]
    if training != "pretrain":
        check_validation(trainer, golden, f"{prefix}valid/", tolerances)
        for key, value in trainer.get_model().lm_head.state_dict().items():
            assert (value.numpy() == start[f"lm_head.{key}"]).all(), key


def test_learning_rates_of_fairseq_train(
    shared_data: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its update k has s(k - 1), as the authors' pre-training; their fine-tuning begins with s(1), s(1)."""
    rates: list[float] = []
    step = Trainer.train_step

    def noted_step(trainer: Trainer, samples: list) -> Any:
        rates.append(trainer.get_lr())
        return step(trainer, samples)

    monkeypatch.setattr(Trainer, "train_step", noted_step)
    flags: list[object] = []
    for training in TRAININGS:
        golden, stored = load(shared_data, f"{training}_tupe_r")
        data = prepare(tmp_path / training, stored, monkeypatch)
        rates.clear()
        fairseq_cli.train.main(configure(root, data, stored, *flags))
        peak, warmup, total = (stored[key] for key in ("lr_peak", "warmup_updates", "total_updates"))
        rising = [peak * n / warmup for n in range(warmup + 1)]
        falling = [peak * (total - n) / (total - warmup) for n in range(warmup + 1, total)]
        assert rates == pytest.approx(rising + falling, rel=0, abs=1e-15)
        unlike = np.abs(rates - golden["expected/lr"]) > 1e-15
        assert unlike.nonzero()[0].tolist() == ([] if training == "pretrain" else [0])
        flags = flags or ["--finetune-from-model", data / "save/checkpoint_last.pt"]
