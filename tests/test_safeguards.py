"""What stands in fairseq's place while a model trains: how checkpoints are written, and when a run ends."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler

from tupe_fairseq import safeguards

STATE = {"model": {"w": torch.arange(1000.0)}, "optimizer_history": [{"num_updates": 7}]}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safeguards, "_PAUSE", 0)


def failing(times: int, error: Exception) -> Any:
    """torch.save, that fails so many times after it has written something."""
    save, left = torch.save, [times]

    def fail(state: Any, file: Any) -> None:
        left[0] -= 1
        if left[0] >= 0:
            file.write(b"half")
            raise error
        save(state, file)

    return fail


def test_a_second_attempt_starts_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "save", failing(2, OSError(errno.EIO, "of a network")))
    safeguards.save(STATE, str(tmp_path / "checkpoint_last.pt"))
    assert torch.equal(torch.load(tmp_path / "checkpoint_last.pt")["model"]["w"], STATE["model"]["w"])


def test_a_failure_leaves_the_file_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint_last.pt"
    path.write_text("before")
    monkeypatch.setattr(torch, "save", failing(3, OSError(errno.EIO, "of a network")))
    with pytest.raises(OSError, match="of a network"):
        safeguards.save(STATE, str(path))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def hidden(error: Exception) -> Exception:
    """As torch raises its own error while it handles that of the file."""
    hiding = RuntimeError("unexpected pos")
    hiding.__context__ = error
    return hiding


@pytest.mark.parametrize("hide", [lambda error: error, hidden])
def test_a_full_disk_is_said_at_once(hide: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    safeguards.save(STATE, str(tmp_path / "checkpoint_1_7.pt"))
    monkeypatch.setattr(torch, "save", failing(1, hide(OSError(errno.ENOSPC, "no space"))))
    with pytest.raises(OSError) as caught:
        safeguards.save(STATE, str(tmp_path / "checkpoint_last.pt"))
    sentence = str(caught.value)
    assert sentence.startswith(
        f"{tmp_path}/checkpoint_last.pt was not written, as the disk is full or a limit "
    )
    assert f"; the last good checkpoint is {tmp_path}/checkpoint_1_7.pt (update 7); make room" in sentence


def test_a_copy_has_bytes_of_its_own_and_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "checkpoint_1_7.pt", tmp_path / "checkpoint_last.pt"
    source.write_bytes(b"new" * 1000)
    assert safeguards.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_ino != source.stat().st_ino
    target.write_text("before")
    assert not safeguards.copy(str(source), str(target))

    def fill(source: object, part: Path) -> None:
        part.write_text("half")
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("shutil.copyfile", fill)
    with pytest.raises(OSError, match=r"checkpoint_last\.pt was not written, as the disk is full"):
        safeguards.copy(str(source), str(target), overwrite=True)
    assert target.read_text() == "before"
    assert sorted(tmp_path.iterdir()) == [source, target]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_not_saved(value: float, tmp_path: Path) -> None:
    safeguards.save(STATE, str(tmp_path / "checkpoint_last.pt"))
    state = {"model": {"w": torch.tensor([1, value])}, "optimizer_history": [{"num_updates": 8}]}
    with pytest.raises(FloatingPointError) as caught:
        safeguards.save(state, str(tmp_path / "checkpoint_1_8.pt"))
    assert str(caught.value).startswith(
        "update 8 failed: the weight w is no longer finite, so checkpoint_1_8.pt was not written; the last "
        f"good checkpoint is {tmp_path}/checkpoint_last.pt (update 7), from which the same command goes on; "
    )
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint_last.pt"]


def trainer(folder: Path) -> Any:
    """One that has done 7 updates."""
    return SimpleNamespace(
        get_num_updates=lambda: 7, cfg=SimpleNamespace(checkpoint=SimpleNamespace(save_dir=str(folder)))
    )


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), torch.tensor(float("nan"))])
def test_a_loss_that_is_not_finite_ends_the_run(loss: Any, tmp_path: Path) -> None:
    """Also where all gradients are finite, which is all that fairseq looks at."""
    step = safeguards.guarded(lambda self, samples: {"loss": loss})
    with pytest.raises(FloatingPointError) as caught:
        step(trainer(tmp_path), [])
    assert str(caught.value) == (
        f"update 8 failed: the loss is {float(loss)}; {tmp_path} has no checkpoint yet, so the same command "
        "begins anew; give it with a smaller --lr or --clip-norm, or more --warmup-updates"
    )


@pytest.mark.parametrize("output", [None, {"loss": 3.5}, {}])
def test_other_steps_are_fairseqs(output: Any, tmp_path: Path) -> None:
    """None is an update that --fp16 skips to find its loss scale."""
    assert safeguards.guarded(lambda self, samples: output)(trainer(tmp_path), []) is output


def test_a_collapsed_loss_scale_says_what_to_change(tmp_path: Path) -> None:
    """The error is that of fairseq's own scaler, after gradients that are never finite."""

    def train_step(self: Any, samples: Any) -> None:
        scaler = DynamicLossScaler(init_scale=2.0, min_loss_scale=0.5)
        for _ in range(9):
            try:
                scaler.check_overflow(float("nan"))
            except OverflowError:
                scaler.update()

    with pytest.raises(
        FloatingPointError, match=r"^update 8 failed: Minimum loss scale reached .*more"
    ) as caught:
        safeguards.guarded(train_step)(trainer(tmp_path), [])
    assert str(caught.value).endswith("a smaller --lr, more --warmup-updates, or --bf16 in place of --fp16")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space"), OSError("said before"), ValueError()])
def test_the_last_words_on_a_full_disk(
    error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """As when TensorBoard finds it full."""
    safeguards.save(STATE, str(tmp_path / "checkpoint_last.pt"))
    seen = []
    safeguards.with_last_words(lambda *given: seen.append(given), tmp_path)(type(error), error, None)
    assert seen == [(type(error), error, None)]
    words = capsys.readouterr().err
    assert bool(words) == (getattr(error, "errno", None) == errno.ENOSPC)
    assert (
        not words or f"last good checkpoint is {tmp_path}/checkpoint_last.pt (update 7); make room" in words
    )
