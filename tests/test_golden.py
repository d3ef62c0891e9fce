"""Parity with the authors' code, by numbers computed with it on tiny models; see golden/README.md there."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tupe_fairseq.checkpoints import SHAPE
from tupe_fairseq.config import TupeConfig
from tupe_fairseq.model import TupeModel
from tupe_fairseq.official import TIED, parameters
from tupe_fairseq.positional import PositionBias, relative_position_bucket, reset_cls
from tupe_fairseq.variants import VARIANTS

MODELS = ["tupe_a", "tupe_r"]
BATCHES = ["pad", "nopad"]
NAMES = parameters(layers=2, relative=True, heads=["sentence_classification_head"])
# absolute tolerances that golden/README.md advises; float32 with a summation order of our own: twice its row
TOLERANCES = {
    torch.float64: {"bias": 1e-12, "hidden": 1e-11, "logits": 1e-11, "loss": 1e-11, "grad": 1e-10},
    torch.float32: {"bias": 1e-5, "hidden": 2e-5, "logits": 4e-5, "loss": 4e-5, "grad": 6e-5},
}


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> Path:
    return shared_data / "golden"


def our_name(official: str) -> str:
    return NAMES[official][0]


def load(folder: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def build(arrays: dict[str, np.ndarray], dtype: torch.dtype) -> TupeModel:
    stored = json.loads(str(arrays["config/json"]))
    state = {our_name(k[6:]): torch.from_numpy(v) for k, v in arrays.items() if k.startswith("param/")}
    state.pop(our_name(TIED))
    cfg = TupeConfig(
        variant=stored["variant"].lower().replace("-", "_"),
        **{name: stored[name] for name in SHAPE[1:]},
        dropout=0.0,
        attention_dropout=0.0,
    )
    model = TupeModel(cfg, stored["vocab_size"], stored["pad"])
    head = "classification_heads.sentence_classification_head.out_proj.weight"
    if head in state:
        model.register_classification_head("sentence_classification_head", state[head].size(0))
    model.load_state_dict(state, strict=True)
    return model.to(dtype).eval()


def close(actual: torch.Tensor, expected: np.ndarray, tolerance: float) -> None:
    worst = np.abs(actual.detach().double().numpy() - expected).max()
    assert worst <= tolerance, f"off by {worst:.1e}, more than {tolerance:.0e}"


def check_gradients(model: TupeModel, arrays: dict[str, np.ndarray], batch: str, tolerance: float) -> None:
    prefix = f"expected_f64/{batch}/grad/"
    expected = {our_name(k[len(prefix) :]): v for k, v in arrays.items() if k.startswith(prefix)}
    actual = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert actual.keys() == expected.keys()
    for name, gradient in actual.items():
        close(gradient, expected[name], tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_pretraining_model(golden: Path, name: str, batch: str, dtype: torch.dtype) -> None:
    arrays, tolerance = load(golden, f"{name}_tiny"), TOLERANCES[dtype]
    model = build(arrays, dtype)
    tokens = torch.from_numpy(arrays[f"input/{batch}/tokens"])
    target = torch.from_numpy(arrays[f"input/{batch}/target"])
    expected = {k.split("/", 2)[2]: v for k, v in arrays.items() if k.startswith(f"expected_f64/{batch}/")}

    bias = model.encoder.position_bias(tokens.size(1)).bias
    close(bias, arrays[f"expected/{batch}/position_bias"], tolerance["bias"])

    features, extra = model(tokens, features_only=True, return_all_hiddens=True)
    for i, hidden in enumerate(extra["inner_states"]):
        close(hidden, expected[f"hidden_{i}"], tolerance["hidden"])
    close(features, expected["features"], tolerance["hidden"])

    close(model(tokens)[0], expected["logits"], tolerance["logits"])
    masked = target.ne(1)
    logits, _ = model(tokens, masked_tokens=masked)
    close(logits, expected["logits_masked"], tolerance["logits"])

    loss = F.cross_entropy(logits, target[masked], reduction="sum")
    close(loss, expected["mlm_loss_sum"], tolerance["loss"])
    loss.backward()
    check_gradients(model, arrays, batch, tolerance["grad"])


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MODELS)
def test_finetuned_model(golden: Path, name: str, batch: str, dtype: torch.dtype) -> None:
    arrays, tolerance = load(golden, f"{name}_tiny_finetuned"), TOLERANCES[dtype]
    model = build(arrays, dtype)
    tokens = torch.from_numpy(arrays[f"input/{batch}/tokens"])
    label = torch.from_numpy(arrays[f"input/{batch}/label"])
    logits, _ = model(tokens, classification_head_name="sentence_classification_head")
    close(logits, arrays[f"expected_f64/{batch}/cls_logits"], tolerance["logits"])
    loss = F.cross_entropy(logits, label, reduction="sum")
    close(loss, arrays[f"expected_f64/{batch}/cls_loss_sum"], tolerance["loss"])
    loss.backward()
    check_gradients(model, arrays, batch, tolerance["grad"])


@pytest.mark.parametrize("name", MODELS)
def test_bias_of_512_positions(golden: Path, name: str) -> None:
    arrays = load(golden, f"{name}_long_bias")
    prefix = "param/decoder.sentence_encoder."
    state = {
        our_name(k[6:]).removeprefix("encoder.position_bias."): torch.from_numpy(v)
        for k, v in arrays.items()
        if k.startswith(prefix)
    }
    scale = 1 / math.sqrt(2 * 32 / 4)
    module = PositionBias(VARIANTS[name], 32, 4, 512, 32, 128, scale).double()
    module.load_state_dict(state)
    bias = module(512).bias
    close(bias[:, arrays["input/rows"]], arrays["expected/position_bias_rows_T512"], 1e-12)
    close(module(1).bias, arrays["expected/position_bias_T1"], 1e-12)
    close(module(2).bias, arrays["expected/position_bias_T2"], 1e-12)
    for sums, key in ((bias, "sum"), (bias.square(), "sumsq")):
        expected = arrays[f"expected/position_bias_T512_{key}_per_head"]
        np.testing.assert_allclose(sums.sum(dim=(1, 2)).detach().numpy(), expected, rtol=1e-12)


def test_buckets(golden: Path) -> None:
    arrays = load(golden, "rel_pos_buckets")
    buckets = relative_position_bucket(torch.from_numpy(arrays["input/distance"]).long(), 32, 128)
    np.testing.assert_array_equal(buckets.numpy(), arrays["expected/bucket_of_distance"])
    position = torch.arange(512)
    table = relative_position_bucket(position[None, :] - position[:, None], 32, 128)
    np.testing.assert_array_equal(table.numpy(), arrays["expected/bucket_512_before_cls"])
    theta1, theta2 = torch.tensor([16]), torch.tensor([32])  # the buckets of the [CLS] row and column
    after = reset_cls(table[None], theta1, theta2)[0]
    np.testing.assert_array_equal(after.numpy(), arrays["expected/bucket_512_after_cls"])
