"""``--optimizer fused_adamw`` against fairseq's ``adam``: updates, norms, checkpoints, half precision."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import fairseq_cli.train
import numpy as np
import pytest
import tiny_model
import torch
from fairseq import optim, tasks
from fairseq.logging import metrics
from fairseq.optim import FP16Optimizer, MemoryEfficientFP16Optimizer
from fairseq.trainer import Trainer
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint
from trajectories import configure, prepare

from tupe_fairseq import checkpoints
from tupe_fairseq.optimizer import NO_DECAY, mark_no_decay
from tupe_fairseq.variants import VARIANTS

pytestmark = [  # of fairseq's own code, with newer versions of hydra and torch
    pytest.mark.filterwarnings("ignore::UserWarning:hydra"),
    pytest.mark.filterwarnings("ignore:[\n ]*'config' is validated:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Using (a )?non-full backward hook:FutureWarning"),
]
SHAPES = [(), (1,), (130,), (17, 9), (3, 4, 5)]
TRAINING = {  # a tiny one, as tests/trajectories.py takes it
    **{"task": "masked_lm", "variant": "TUPE-R", "mask": 44, "lr_peak": 1e-2, "max_positions": 16},
    **{"warmup_updates": 1, "total_updates": 6, "encoder_layers": 1, "encoder_embed_dim": 32},
    **{"encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2},
}


def parameters(
    shapes: list[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32
) -> list[nn.Parameter]:
    torch.manual_seed(1)
    return [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in shapes]


def options(name: str, **changes: Any) -> Any:
    """What fairseq makes of the flags of an optimizer."""
    given = {"adam_betas": "(0.9,0.98)", "adam_eps": 1e-4, "weight_decay": 0.1, "lr": [0.01], **changes}
    if name == "adam":
        given["tpu"] = False
    return OmegaConf.create({"_name": name, **given})


def build(name: str, params: list[nn.Parameter], **changes: Any) -> Any:
    return optim.build_optimizer(options(name, **changes), params)


def both(**changes: Any) -> list[tuple[Any, list[nn.Parameter]]]:
    """fairseq's optimizer and ours, each with the same parameters of its own."""
    pairs = []
    for name in ("adam", "fused_adamw"):
        params = parameters(**changes)
        pairs.append((build(name, params), params))
    return pairs


def update(optimizer: Any, params: list[nn.Parameter], seed: int, clip: float, skip: int = -1) -> Tensor:
    """One of fairseq's trainer, with a learning rate of its own; returns the norm that is reported."""
    optimizer.zero_grad()
    torch.manual_seed(seed)
    for i, p in enumerate(params):
        grad = torch.randn(p.shape, dtype=torch.float64).to(p.dtype)
        p.grad = None if i == skip else grad
    optimizer.set_lr(0.01 / (1 + seed % 7))
    optimizer.multiply_grads(3.0)
    optimizer.multiply_grads(torch.tensor(0.5))
    norm = optimizer.clip_grad_norm(clip)
    optimizer.step()
    return norm


@pytest.mark.parametrize("clip", [0.0, 0.7, 1e6])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 3e-6)], ids=str)
def test_many_updates_are_fairseqs(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float, clip: float
) -> None:
    if dtype == torch.float64:  # fairseq's norm is a float32, which torch refuses to make of these
        norm = torch.norm
        monkeypatch.setattr(torch, "norm", lambda *args, dtype=None, **options: norm(*args, **options))
    pairs = both(dtype=dtype)
    for k in range(200):
        expected, actual = (update(*pair, seed=k, clip=clip, skip=3 if k % 5 == 4 else -1) for pair in pairs)
        np.testing.assert_allclose(actual, expected, rtol=torch.finfo(dtype).eps * 4)
    for p, q in zip(*(params for _, params in pairs)):
        np.testing.assert_allclose(q.detach(), p.detach(), atol=tolerance, rtol=0)


def test_the_norm_is_of_scaled_gradients_and_clips_only_if_it_is_to() -> None:
    """3, 4 and nothing, times 2: the norm is 10; clipped to 5 it is 5, up to fairseq's 1e-6."""
    params = parameters([(1,), (1,), (2,)])
    optimizer = build("fused_adamw", params, adam_betas="(0.0,0.0)")
    for clip, first in ((0, 6.0), (20, 6.0), (5, 3.0)):
        optimizer.zero_grad()
        params[0].grad, params[1].grad = torch.tensor([3.0]), torch.tensor([-4.0])
        optimizer.multiply_grads(4)
        optimizer.multiply_grads(torch.tensor(0.5))
        assert optimizer.clip_grad_norm(clip).item() == pytest.approx(10, abs=1e-6)
        optimizer.step()  # with betas of 0, m is the gradient of this update
        assert optimizer.optimizer.state[params[0]]["exp_avg"].item() == pytest.approx(first, abs=1e-5)
    assert params[2] not in optimizer.optimizer.state


def test_the_norm_of_all_workers_is_of_scaled_gradients() -> None:
    """An aggregating function gets what it gets from fairseq's adam; its result clips."""
    params = parameters([(1,)])
    optimizer = build("fused_adamw", params, adam_betas="(0.0,0.0)")
    params[0].grad = torch.tensor([3.0])
    optimizer.multiply_grads(2)
    seen = []

    def aggregate(norm: Tensor) -> Tensor:
        seen.append(norm.item())
        return norm + 6

    assert optimizer.clip_grad_norm(3, aggregate_norm_fn=aggregate).item() == 12
    optimizer.step()
    assert seen == [6.0]
    assert optimizer.optimizer.state[params[0]]["exp_avg"].item() == pytest.approx(1.5, abs=1e-6)


def test_no_gradients_at_all_are_no_update() -> None:
    for optimizer, params in both():
        start = [p.detach().clone() for p in params]
        assert optimizer.clip_grad_norm(1.0) == 0
        optimizer.step()
        assert all(torch.equal(p, q) for p, q in zip(params, start))


def trained(root: Path, data: Path, optimizer: str, *flags: object) -> Trainer:
    """A trainer of fairseq-train at its end."""
    metrics.reset()
    kept: list[Trainer] = []
    patch = pytest.MonkeyPatch()
    init = Trainer.__init__

    def keep(self: Trainer, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        kept.append(self)

    with patch.context() as context:
        context.setattr(Trainer, "__init__", keep)
        given = ("--optimizer", optimizer, "--batch-size", 8, *flags)
        fairseq_cli.train.main(configure(root, data, TRAINING, *given))
    return kept[0]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepare(tmp_path / "data", TRAINING, monkeypatch)


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in trainer.get_model().state_dict().items()}


def test_a_run_goes_on_bit_for_bit_and_its_checkpoint_holds_no_classes(root: Path, data: Path) -> None:
    whole = trained(root, data, "fused_adamw", "--save-dir", data / "whole", "--update-freq", 2)
    cut = ("--save-dir", data / "cut", "--update-freq", 2)
    trained(root, data, "fused_adamw", *cut, "--max-update", 3)
    assert get_unsafe_globals_in_checkpoint(data / "cut" / "checkpoint_last.pt") == []
    resumed = trained(root, data, "fused_adamw", *cut)
    expected, actual = whole.optimizer.state_dict(), resumed.optimizer.state_dict()
    assert actual["param_groups"] == expected["param_groups"]
    assert all(torch.equal(weights(resumed)[name], weight) for name, weight in weights(whole).items())
    for i, state in expected["state"].items():
        assert type(actual["state"][i]["step"]) is int and actual["state"][i]["step"] == state["step"] == 6
        assert all(torch.equal(actual["state"][i][name], state[name]) for name in ("exp_avg", "exp_avg_sq"))


@pytest.mark.parametrize("order", [("adam", "fused_adamw"), ("fused_adamw", "adam")])
def test_either_goes_on_where_the_other_stopped(root: Path, data: Path, order: tuple[str, str]) -> None:
    """Through checkpoints as fairseq-train writes them; the end is that of fairseq's adam alone."""
    alone = trained(root, data, "adam", "--save-dir", data / "alone", "--update-freq", 2)
    flags = ("--save-dir", data / "changed", "--update-freq", 2)
    first = trained(root, data, order[0], *flags, "--max-update", 3)
    second = trained(root, data, order[1], *flags)
    assert second.get_num_updates() == 6
    for name, weight in weights(alone).items():
        np.testing.assert_allclose(weights(second)[name], weight, atol=2e-5, rtol=0, err_msg=name)
        assert (weights(first)[name] - weight).abs().max() > 1e-3 or "absolute" in name, name
    states = [trainer.optimizer.state_dict() for trainer in (alone, second)]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    for i, state in states[0]["state"].items():
        assert state.keys() == states[1]["state"][i].keys()
        assert state["step"] == states[1]["state"][i]["step"] == 6
        for name in ("exp_avg", "exp_avg_sq"):
            np.testing.assert_allclose(states[1]["state"][i][name], state[name], atol=2e-5, rtol=1e-3)


def trainer_of(cfg: Any) -> Trainer:
    task = tasks.setup_task(cfg.task)
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("optimizer", ["adam", "fused_adamw"])
def test_gradients_that_are_no_numbers_end_the_training(
    root: Path, data: Path, optimizer: str, value: float
) -> None:
    """Before anything is updated, as with fairseq's adam."""
    (data / "save").mkdir()
    trainer = trainer_of(configure(root, data, TRAINING, "--optimizer", optimizer))
    before = weights(trainer)
    trainer.optimizer.set_lr(0.1)
    trainer.get_model().lm_head.bias.register_hook(lambda grad: grad * value)
    trainer.task.load_dataset("train")
    batches = trainer.task.get_batch_iterator(trainer.task.dataset("train"), max_sentences=4)
    trainer.begin_epoch(1)
    with pytest.raises(FloatingPointError, match="Nan/Inf"):
        trainer.train_step([next(batches.next_epoch_itr(shuffle=False))])
    assert all(torch.equal(weight, before[name]) for name, weight in weights(trainer).items())
    assert checkpoints.load(data / "save" / "crash.pt")["last_optimizer_state"]["state"] == {}


@pytest.mark.parametrize("lost", ["exp_avg_sq", None])
def test_a_state_of_another_kind_is_refused(lost: str | None) -> None:
    """That of apex keeps no step with a parameter, and its scales with --fp16-adam-stats."""
    params = parameters()
    theirs = build("adam", params)
    update(theirs, params, seed=0, clip=0)
    stored = theirs.state_dict()
    if lost:
        del stored["state"][1][lost]
    else:
        stored["state"][1]["exp_avg_scale"] = 1.0
    with pytest.raises(
        ValueError, match=r"the checkpoint's optimizer has the state .*--reset-optimizer starts"
    ):
        build("fused_adamw", params).load_state_dict(stored)


def test_sharding_is_refused() -> None:
    """fairseq would put another optimizer in the place of ours, which knows no factor."""
    optimizer = build("fused_adamw", parameters())
    with pytest.raises(ValueError, match="--zero-sharding shards --optimizer adam"):
        optimizer.optimizer = optimizer.optimizer


SPARED = {  # of the tables, by variant; biases and LayerNorms are spared in all of them
    "bert_a": {"embed_positions"},
    "bert_r": {"embed_positions", "position_bias.relative.embedding"},
    "bert_a_d": {"position_bias.absolute.embedding"},
    "tupe_a": {"position_bias.absolute.embedding"},
    "tupe_r": {"position_bias.absolute.embedding", "position_bias.relative.embedding"},
    "tupe_a_tie_cls": {"position_bias.absolute.embedding"},
    "tupe_r_tie_cls": {"position_bias.absolute.embedding", "position_bias.relative.embedding"},
}


def is_spared(name: str, variant: str = "tupe_r") -> bool:
    tables = {f"encoder.{table}.weight" for table in SPARED[variant]}
    return name.endswith("bias") or "layer_norm" in name or name in tables


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_selective_weight_decay_spares(variant: str) -> None:
    model = tiny_model.small(variant=variant)
    model.register_classification_head("sentence_classification_head", 2)
    mark_no_decay(model)
    names = {name for name, p in model.named_parameters() if getattr(p, "param_group", "") == NO_DECAY}
    everything = {name for name, _ in model.named_parameters()}
    assert names == {name for name in everything if is_spared(name, variant)}
    assert "encoder.embed_tokens.weight" not in names and "lm_head.bias" in names


@pytest.mark.parametrize("selective", [False, True])
def test_weight_decay_of_a_run(root: Path, data: Path, selective: bool) -> None:
    """Of gradients that are zero, decay is all that remains of an update."""
    flags = ["--selective-weight-decay"] if selective else []
    trainer = trainer_of(configure(root, data, TRAINING, *flags, "--weight-decay", 0.5))
    assert any(hasattr(p, "param_group") for p in trainer.get_model().parameters()) == selective
    before = weights(trainer)
    trainer.optimizer.set_lr(0.5)
    for p in trainer.get_model().parameters():
        p.grad = torch.zeros_like(p)
    trainer.optimizer.step()
    for name, weight in weights(trainer).items():
        decays = not (selective and is_spared(name))
        assert torch.equal(weight, before[name] * (0.75 if decays else 1.0)), name


@pytest.mark.parametrize("selective", [False, True])
def test_a_run_that_goes_on_decays_what_its_own_flags_say(root: Path, data: Path, selective: bool) -> None:
    """The moments are those of before, whichever way the option is changed."""
    flags = ["--selective-weight-decay"]
    trained(root, data, "fused_adamw", "--max-update", 3, *([] if selective else flags))
    flags = flags if selective else []
    trainer = trainer_of(configure(root, data, TRAINING, "--batch-size", 8, *flags))
    trainer.load_checkpoint(str(data / "save" / "checkpoint_last.pt"))
    before, optimizer = weights(trainer), trainer.optimizer.optimizer
    (group,) = optimizer.param_groups
    trainer.optimizer.set_lr(0.5)
    params = dict(trainer.get_model().named_parameters())
    moments = {name: optimizer.state[p]["exp_avg"].clone() for name, p in params.items()}
    for p in params.values():
        p.grad = torch.zeros_like(p)
    trainer.optimizer.step()
    for name, p in params.items():
        state = optimizer.state[p]
        torch.testing.assert_close(state["exp_avg"], 0.9 * moments[name])
        assert state["step"] == 4
        decayed = before[name] * (1 - 0.5 * 0.01 * (not (selective and is_spared(name))))
        factor = 0.5 * (1 - 0.999**4) ** 0.5 / (1 - 0.9**4)
        expected = decayed - factor * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + group["eps"])
        np.testing.assert_allclose(p.detach(), expected, atol=2e-6, rtol=1e-6, err_msg=name)


@pytest.fixture
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq asks which GPU it is on where it flattens parameters."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)


def in_half(name: str, kind: str, params: list[nn.Parameter], **changes: Any) -> Any:
    """fairseq's optimizer of half precision around one."""
    common = {"fp16_no_flatten_grads": kind == "apart", "bf16": False, "fp16_scale_window": 4}
    common |= {"fp16_init_scale": 16, "fp16_scale_tolerance": 0.0, "threshold_loss_scale": None}
    cfg = {"common": {**common, "min_loss_scale": 1e-4}, "optimizer": options(name, **changes)}
    cls = MemoryEfficientFP16Optimizer if kind == "memory-efficient" else FP16Optimizer
    return cls.build_optimizer(OmegaConf.create(cfg), params)


def half_updates(name: str, kind: str) -> tuple[list[float], list[nn.Parameter]]:
    """Eight updates, the third with an overflow, and a new optimizer with the state of the old after five."""
    params = parameters(dtype=torch.float16)
    optimizer, norms = in_half(name, kind, params), []
    for k in range(8):
        if k == 5:
            stored = optimizer.state_dict()
            optimizer = in_half(name, kind, params)
            optimizer.load_state_dict(stored)
        optimizer.zero_grad()
        torch.manual_seed(k)
        loss = sum((p.float() * torch.randn(p.shape)).sum() for p in params)
        optimizer.backward(loss * (math.inf if k == 2 else 1))
        optimizer.multiply_grads(0.5)
        try:
            norms.append(float(optimizer.clip_grad_norm(5.0)))
            optimizer.step()
        except OverflowError:
            norms.append(-1.0)
    return norms, params


@pytest.mark.parametrize("kind", ["flat", "apart", "memory-efficient"])
@pytest.mark.usefixtures("without_a_gpu")
def test_half_precision_is_fairseqs(kind: str) -> None:
    (expected, theirs), (actual, ours) = (half_updates(name, kind) for name in ("adam", "fused_adamw"))
    assert expected[2] == -1
    assert min(expected[:2] + expected[3:]) > 5, "all others are clipped"
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    for p, q, start in zip(theirs, ours, parameters(dtype=torch.float16)):
        np.testing.assert_allclose(q.detach().float(), p.detach().float(), atol=2e-3, rtol=0)  # one rounding
        assert not torch.equal(q, start)


@pytest.mark.parametrize("kind", ["apart", "memory-efficient"])
@pytest.mark.usefixtures("without_a_gpu")
def test_selective_weight_decay_in_half_precision(kind: str) -> None:
    model = tiny_model.small()
    for p in model.parameters():
        nn.init.constant_(p, 0.5)
    mark_no_decay(model.half())
    optimizer = in_half("fused_adamw", kind, list(model.parameters()), selective_weight_decay=True, lr=[5.0])
    optimizer.backward(sum((0 * p).sum() for p in model.parameters()))
    optimizer.step()
    for name, p in model.named_parameters():
        assert (p == (0.5 if is_spared(name) else 0.25)).all(), name


@pytest.mark.usefixtures("without_a_gpu")
def test_selective_weight_decay_of_a_flat_copy_is_refused() -> None:
    model = tiny_model.small().half()
    mark_no_decay(model)
    with pytest.raises(ValueError, match=r"^--selective-weight-decay finds none .* --fp16-no-flatten-grads"):
        in_half("fused_adamw", "flat", list(model.parameters()), selective_weight_decay=True)
