"""The fairseq criterion ``tupe_sentence_prediction``, and GLUE's metrics over all rows of a split.

How predictions come together: every batch of an evaluation logs a table with a column for each row of the
split, filled in for its own rows. Tables add up over batches and workers, as fairseq's logged numbers do, and
the sum does not depend on how the rows were dealt out.

Shapes: B rows of a batch, C outputs of the sentence head (1 for regression), N rows of a split.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch import Tensor, nn

from .glue import BATCH_MEAN

logger = logging.getLogger(__name__)

ROWS = "_rows"  # the meter that adds up the tables; fairseq does not print names with "_"

# Each takes predictions and targets, (N,) each, and returns a fraction.
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda predictions, targets: accuracy_score(targets, predictions),
    # of label id 1, as in GLUE; 0 where neither predictions nor targets have it
    "f1": lambda predictions, targets: f1_score(targets == 1, predictions == 1, zero_division=0.0),
    # the mean of F1 over the labels that predictions or targets have
    "macro_f1": lambda predictions, targets: f1_score(
        targets, predictions, average="macro", zero_division=0.0
    ),
    "mcc": lambda predictions, targets: matthews_corrcoef(targets, predictions),
    "pearson": lambda predictions, targets: pearsonr(predictions, targets)[0],
    "spearman": lambda predictions, targets: spearmanr(predictions, targets)[0],
}
# GLUE's score of a task with two metrics is their mean.
METRICS["acc_f1"] = lambda *rows: (METRICS["accuracy"](*rows) + METRICS["f1"](*rows)) / 2
METRICS["pearson_spearman"] = lambda *rows: (METRICS["pearson"](*rows) + METRICS["spearman"](*rows)) / 2
# undefined where all predictions, or all targets, are equal
CORRELATIONS = ("mcc", "pearson", "spearman", "pearson_spearman")


def score(names: Sequence[str], predictions: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """The named metrics over all rows, as fractions: scikit-learn's and SciPy's values.

    A correlation that is not defined counts as 0: NaN would win over every later value in fairseq's `max`.

    Args:
        names: keys of METRICS.
        predictions, targets: (N,), label ids or numbers.
    """
    undefined = why_undefined(predictions, targets) is not None
    return {
        name: 0.0 if undefined and name in CORRELATIONS else float(METRICS[name](predictions, targets))
        for name in names
    }


def why_undefined(predictions: np.ndarray, targets: np.ndarray) -> str | None:
    """Why predictions and labels (N,) have no correlation, if they have none."""
    for what, values in (("predictions", predictions), ("labels", targets)):
        if not np.isfinite(values).all():
            return f"not all {what} are finite numbers"
        if (values == values[0]).all():
            return f"all {what} are {values[0]:g}"
    return None


class RowTable(Tensor):
    """A table of rows that does not print all its numbers: fairseq-validate shows what a batch logs.

    What is computed from it is an ordinary tensor, so that this class gets into no checkpoint.
    """

    # as torch.nn.Parameter has it
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def tolist(self) -> str:  # type: ignore[override]
        """What fairseq's progress line shows."""
        return f"{int(self.as_subclass(Tensor)[0].sum())} rows"


def table_of(ids: Tensor, predictions: Tensor, targets: Tensor, rows: int) -> RowTable:
    """A table (3, N) with 1, prediction and target in the columns of a batch's rows and 0 in all others.

    Args:
        ids, predictions, targets: (B,)
        rows: N
    """
    table = torch.zeros(3, rows, dtype=torch.double, device=ids.device)
    table[0, ids] = 1
    table[1, ids] = predictions.double()
    table[2, ids] = targets.double()
    return table.as_subclass(RowTable)


def rows_of(table: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and targets (N,) of the rows that a sum of tables has, in the order of the file."""
    seen, predictions, targets = table.as_subclass(Tensor).cpu().numpy()
    return predictions[seen > 0], targets[seen > 0]


def log_scores(names: Sequence[str], logging_outputs: list[dict[str, Any]]) -> None:
    """Logs the named metrics over the rows of all batches so far; training logs no rows, and no metrics.

    Beside them their means over batches, all of equal weight, which is what the authors' code reports.
    """
    logs = [log for log in logging_outputs if "table" in log]
    if not logs:
        return
    metrics.log_scalar_sum(ROWS, sum(log["table"] for log in logs))
    batches = sum(log["batches"] for log in logs)
    for name in names:
        metrics.log_derived(name, partial(_score_of_sum, name))
        total = sum(log[BATCH_MEAN + name] for log in logs)
        metrics.log_scalar(BATCH_MEAN + name, total / batches, batches)


def _score_of_sum(name: str, meters: dict[str, Any]) -> float:
    table = meters[ROWS].sum
    predictions, targets = rows_of(table)
    reason = why_undefined(predictions, targets)
    if reason and name in CORRELATIONS and len(targets) == table.size(1):  # all rows, not those of one batch
        logger.warning("%s, so %s is undefined; it counts as 0", reason, name)
    return score([name], predictions, targets)[name]


@register_criterion("tupe_sentence_prediction", dataclass=FairseqDataclass)
class TupeSentencePredictionCriterion(FairseqCriterion):
    """Cross-entropy of a sentence head's classes, or the squared error of its number.

    The loss is a sum, and fairseq divides the gradient by ``sample_size``, the rows. The logged ``loss`` is
    the mean over rows: in bits for classes, as elsewhere in fairseq; for regression the squared error of the
    scaled labels.
    """

    def __init__(self, task: Any) -> None:
        super().__init__(task)
        self.head = task.cfg.classification_head_name
        self.regression = task.prepared.task.regression

    def forward(self, model: nn.Module, sample: dict[str, Any], reduce: bool = True) -> tuple:
        """Returns the summed loss, the number of rows, and what to log (in evaluation, a table of rows too).

        Raises:
            ValueError: the rows have no labels.
        """
        if "target" not in sample:
            raise ValueError("these rows have no labels; GLUE's test rows can be predicted but not scored")
        outputs, _ = model(**sample["net_input"], classification_head_name=self.head)  # (B, C)
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        targets = sample["target"]  # (B,)
        if self.regression:
            predictions = outputs.squeeze(-1)
            loss = F.mse_loss(predictions, targets.to(predictions), reduction="sum")
        else:
            predictions = outputs.argmax(dim=-1)
            loss = F.cross_entropy(outputs, targets, reduction="sum")
        rows = len(targets)
        logging_output = {
            "loss": loss.detach() / (1 if self.regression else math.log(2)),
            "ntokens": sample["ntokens"],
            "nsentences": rows,
            "sample_size": rows,
        }
        if not self.training:
            logging_output["table"] = table_of(sample["id"], predictions, targets, sample["split_rows"])
            logging_output["batches"] = 1
            names = self.task.prepared.task.metrics
            of_batch = score(names, predictions.cpu().numpy(), targets.cpu().numpy())
            logging_output |= {BATCH_MEAN + name: value for name, value in of_batch.items()}
        return loss, rows, logging_output

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Logs the mean loss of the rows of all workers and batches; the task adds the metrics."""
        rows = sum(log["sample_size"] for log in logging_outputs)
        loss = sum(log["loss"] for log in logging_outputs)
        metrics.log_scalar("loss", loss / rows, rows, round=4)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Whether workers may add up what they log."""
        return True
