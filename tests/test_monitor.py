"""What a training shows besides fairseq's curves: pictures, spreads of logits, padding, a forecast."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tiny_model
import tiny_run
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tupe_fairseq.forecast import Forecast, duration
from tupe_fairseq.monitor import FOLDER, Monitor, logit_spreads
from tupe_fairseq.variants import VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_can_be_shown(tmp_path: Path, variant: str) -> None:
    model = tiny_model.small(variant=variant).train()
    state = torch.get_rng_state()
    Monitor(tmp_path).log(model, torch.tensor([[0, 5, 6, 2], [0, 7, 8, 9]]), update=3)
    assert torch.equal(torch.get_rng_state(), state), "a resumed run would differ"
    assert model.training
    events = EventAccumulator(str(tmp_path / FOLDER))
    events.Reload()
    assert [image.step for image in events.Images("positions")] == [3]
    bias = VARIANTS[variant].relative or (VARIANTS[variant].untied and variant != "bert_a_d")
    names = [name for name in events.Tags()["scalars"] if "positions over content" in name]
    assert len(names) == (2 if bias else 0)  # layers


def test_weights_that_are_no_numbers_do_not_end_a_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next update does, and says where the last good checkpoint is."""
    model = tiny_model.small()
    torch.nn.init.constant_(model.encoder.position_bias.relative.embedding.weight, math.inf)
    Monitor(tmp_path).log(model, torch.tensor([[0, 5, 6, 2]]), update=3)
    assert "no picture of positions: the model's positions have weights that are no finite" in caplog.text


def test_spreads_are_those_of_logits_made_by_hand() -> None:
    """Two tokens: logits (a, b) have the deviation |a - b| / sqrt(2); the first layer sees the embeddings."""
    model = tiny_model.small(variant="bert_r").eval()
    tokens = torch.tensor([[0, 5]])
    x = model.encoder(tokens, return_all_hiddens=True)[1][0]  # (1, 2, D)
    w_q, w_k, _ = model.state_dict()["encoder.layers.0.self_attn.in_proj.weight"].chunk(3)
    heads = []
    for rows in (slice(0, 8), slice(8, 16)):  # two heads of width 8
        logits = (x[0] @ w_q[rows].T) @ (x[0] @ w_k[rows].T).T / math.sqrt(8)  # (2, 2)
        heads.append(logits)
    expected = sum((row[0] - row[1]).abs().item() for logits in heads for row in logits) / 4 / math.sqrt(2)
    content, positions = logit_spreads(model, tokens)[0]
    assert content == pytest.approx(expected, rel=1e-4)
    bias = model.encoder.position_bias(2).bias  # (2, 2, 2)
    assert positions == pytest.approx(
        (bias[..., 0] - bias[..., 1]).abs().mean().item() / math.sqrt(2), rel=1e-4
    )


@pytest.mark.slow
def test_a_training_shows_them_and_one_flag_leaves_them_out(tmp_path: Path) -> None:
    corpora = tiny_run.make_corpora(tmp_path)
    off = tiny_run.command(corpora, tmp_path / "off", max_update="14", validate_interval="2")
    on = tiny_run.command(corpora, tmp_path / "on", max_update="14", validate_interval="2")
    on.remove("--no-position-logs")
    status, log = tiny_run.train(on, tmp_path / "log")
    assert status == 0, log
    assert "s an update: the " in log
    assert "| padding " in log
    events = EventAccumulator(str(tmp_path / "on" / "tensorboard" / FOLDER))
    events.Reload()
    assert events.Images("positions")[-1].step == 14
    status, log = tiny_run.train(off, tmp_path / "log")
    assert status == 0, log
    assert not (tmp_path / "off" / "tensorboard" / FOLDER).exists()
    on, off = (tiny_run.result(tmp_path / name) for name in ("on", "off"))
    for name, weight in on["model"].items():
        assert torch.equal(weight, off["model"][name]), "looking changed the training"


def test_a_forecast_is_made_once_of_ten_updates_after_the_first() -> None:
    forecast = Forecast(planned=1000)
    lines = [forecast.line(done, 100.0 + 3 * done) for done in range(100, 120)]
    said = [(done, line) for done, line in zip(range(100, 120), lines) if line]
    # begun behind the first update, at 101; ten updates later, 889 are left at 3 s each: 2,667 s
    assert said == [(111, "3 s an update: the 889 that are left take about 44 min 27 s")]


def test_a_forecast_counts_updates_not_batches() -> None:
    forecast, lines = Forecast(planned=100), []
    for batch in range(60):  # --update-freq 4, a second a batch
        lines.append(forecast.line(batch // 4, float(batch)))
    assert [line for line in lines if line] == ["4 s an update: the 89 that are left take about 5 min 56 s"]


def test_no_forecast_where_nothing_says_how_long() -> None:
    forecast = Forecast(planned=0)
    assert not any(forecast.line(done, float(done)) for done in range(50))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(9.4, "9 s"), (61, "1 min 1 s"), (3600 * 5 + 90, "5 h 1 min"), (86400 * 3 + 3600 * 2, "3 d 2 h")],
)
def test_durations_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words
