"""Batches at the edge: nothing masked, rows of one token, rows of padding alone. All numbers stay finite."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.logging import metrics
from tiny_model import VOCAB, small

from tupe_fairseq.masked_lm import TupeMaskedLMConfig, TupeMaskedLMTask
from tupe_fairseq.variants import VARIANTS

BOS, PAD, EOS = 0, 1, 2
ROWS = {
    "one token beside a full row": [[BOS, *range(5, 15), EOS], [BOS, *[PAD] * 11]],
    "a row of padding": [[BOS, *range(5, 15), EOS], [PAD] * 12],
    "padding alone": [[PAD] * 12, [PAD] * 12],
    "a batch of one token": [[BOS]],
}


@pytest.fixture
def task(tmp_path: Path) -> TupeMaskedLMTask:
    (tmp_path / "dict.txt").write_text("".join(f"a{i} 1\n" for i in range(VOCAB - 5)))
    return TupeMaskedLMTask.setup_task(TupeMaskedLMConfig(data=str(tmp_path), seed=1, tokens_per_sample=12))


def sample(tokens: torch.Tensor, masked: list[tuple[int, int]]) -> dict:
    """A batch as the task makes it; tokens are (B, T)."""
    target = torch.full_like(tokens, PAD)
    for row, column in masked:
        target[row, column] = 7
    lengths = tokens.ne(PAD).sum(1)
    net_input = {"src_tokens": tokens, "src_lengths": lengths}
    return {
        "net_input": net_input,
        "target": target,
        "ntokens": int(lengths.sum()),
        "nsentences": len(tokens),
    }


@pytest.mark.parametrize("impl", ["reference", "tiles", "sdpa"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rows", ROWS)
def test_gradients_stay_finite(rows: str, variant: str, impl: str, task: TupeMaskedLMTask) -> None:
    """With a masked token where there is one, and with none."""
    tokens = torch.tensor(ROWS[rows])
    model = small(variant=variant, attention_impl=impl, attention_dropout=0.1).train()
    criterion = MaskedLmLoss(MaskedLmConfig(tpu=False), task)
    for masked in ([], [(0, 3)] if tokens[0, 0] == BOS and tokens.size(1) > 3 else []):
        model.zero_grad()
        loss, size, _ = criterion(model, sample(tokens, masked))
        loss.backward()
        assert size == len(masked)
        assert torch.isfinite(loss)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(torch.isfinite(gradient).all() for gradient in gradients)
        assert any(gradient.any() for gradient in gradients) == bool(masked), "nothing masked teaches nothing"


def logged(task: TupeMaskedLMTask, *outputs: tuple[float, int]) -> list[float]:
    """The average loss after each batch of (summed loss, masked tokens)."""
    found = []
    metrics.reset()
    with metrics.aggregate("train") as averages:
        for loss, size in outputs:
            output = {
                "loss": torch.tensor(loss),
                "sample_size": torch.tensor(size),
                "ntokens": 9,
                "nsentences": 1,
            }
            task.reduce_metrics([output], MaskedLmLoss(MaskedLmConfig(tpu=False), task))
            found.append(float(averages.get_smoothed_value("loss")))
    return found


def test_a_batch_with_nothing_masked_does_not_count(
    task: TupeMaskedLMTask, caplog: pytest.LogCaptureFixture
) -> None:
    """Losses are bits a masked token: 6 ln 2 over 2 tokens are 3; and (6 + 18) / (2 + 4) = 4."""
    bits = math.log(2)
    assert logged(task, (0.0, 0), (6 * bits, 2), (0.0, 0), (18 * bits, 4)) == [0, 3, 3, 4]
    assert caplog.text.count("a batch without a masked token") == 2


def test_a_validation_with_nothing_masked_is_refused(task: TupeMaskedLMTask) -> None:
    for count in (0, 3):
        agg = {"loss": SimpleNamespace(count=count)}
        if count:
            task.post_validate(None, {}, agg)
        else:
            with pytest.raises(
                ValueError, match=r"no token of the validation text was masked: .* --mask-prob 0\.15"
            ):
                task.post_validate(None, {}, agg)
