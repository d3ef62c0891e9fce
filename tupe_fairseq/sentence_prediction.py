"""The fairseq task ``tupe_sentence_prediction``: a label for a sentence, or for a pair of them.

It reads a folder made by scripts/prepare_glue.sh: what the task is stands there in ``task.json``.
"""

# No "from __future__ import annotations" here: fairseq reads the types of the fields, not their names.

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq.data import (
    Dictionary,
    IdDataset,
    NestedDictionaryDataset,
    NumelDataset,
    NumSamplesDataset,
    RawLabelDataset,
    RightPadDataset,
)
from fairseq.logging import metrics
from fairseq.tasks import register_task
from omegaconf import II, MISSING

from .checkpoints import GLUE_TASK
from .config import TupeTaskConfig
from .glue import BATCH_MEAN, LONGEST, PreparedTask
from .glue_task import labelled
from .preflight import check_run, start, valid_subsets
from .sentence_criterion import ROWS, log_scores
from .sentence_rows import DealtRowsDataset, existing, load_rows, load_targets
from .tupe_task import TupeTask, read_dictionary
from .vocabulary import DICTIONARY_FILE, PAD

logger = logging.getLogger(__name__)


@dataclass
class TupeSentencePredictionConfig(TupeTaskConfig):
    """The options of the task."""

    data: str = field(default=MISSING, metadata={"help": "folder of one prepared GLUE task"})
    tokens_per_sample: int = field(
        default=LONGEST,
        metadata={"help": "longest row in tokens, <s> and </s> included; longer rows are cut"},
    )
    classification_head_name: str = field(
        default="sentence_classification_head", metadata={"help": "name of the model's sentence head"}
    )
    seed: int = II("common.seed")


@register_task("tupe_sentence_prediction", dataclass=TupeSentencePredictionConfig)
class TupeSentencePredictionTask(TupeTask):
    """Classification or regression on ``<s> A </s>`` or ``<s> A </s> </s> B </s>``, as the authors' code.

    No row is ever left out: long ones are cut, and the last batch may be small.
    """

    cfg: TupeSentencePredictionConfig

    def __init__(
        self, cfg: TupeSentencePredictionConfig, dictionary: Dictionary, prepared: PreparedTask
    ) -> None:
        super().__init__(cfg, dictionary)
        self.state.merge_state_dict({GLUE_TASK: prepared.task.name})
        self.prepared = prepared

    @classmethod
    def setup_task(cls, cfg: TupeSentencePredictionConfig, **kwargs: Any) -> "TupeSentencePredictionTask":
        """Reads the description and the dictionary of the data folder.

        Raises:
            FileNotFoundError: one of them does not exist.
            ValueError: a row would hold no text, or the task has no rows that a training needs.
        """
        prepared = PreparedTask.load(Path(cfg.data))
        least = prepared.task.least_tokens
        if cfg.tokens_per_sample < least:
            raise ValueError(
                f"--tokens-per-sample {cfg.tokens_per_sample} leaves no room for text; "
                f"{prepared.task.name} needs {least} or more"
            )
        whole = start(cfg, **kwargs)
        if whole:
            check_run(whole)
            for split in ("train", *valid_subsets(whole)):
                if split not in prepared.rows:
                    raise ValueError(
                        f"{cfg.data} has no {split} rows (--valid-subset); "
                        f"there are {', '.join(prepared.rows)}"
                    )
        dictionary = read_dictionary(existing(Path(cfg.data, DICTIONARY_FILE)))
        logger.info("%s: %s", prepared.task.name, ", ".join(prepared.task.labels) or "regression")
        return cls(cfg, dictionary, prepared)

    def load_dataset(self, split: str, **kwargs: Any) -> None:
        """Loads a split. In a batch, ``id`` is the number of the row in GLUE's file, counted from 0.

        Raises:
            FileNotFoundError: a file of the split does not exist.
            ValueError: the files do not fit each other.
        """
        folder, longest = Path(self.cfg.data), self.cfg.tokens_per_sample
        rows = load_rows(folder, self.prepared, split, longest, len(self.dictionary))
        logger.info(
            "%s: %s rows, %s (%.2f%%) cut to %s tokens",
            *(split, f"{len(rows):,}", rows.cut, 100 * rows.cut / len(rows), longest),
        )
        self.check_rows(split, len(rows), kwargs.get("epoch", 1))
        batch = {
            "id": IdDataset(),
            "net_input": {
                "src_tokens": RightPadDataset(rows, pad_idx=PAD),
                "src_lengths": NumelDataset(rows, reduce=False),
            },
            "nsentences": NumSamplesDataset(),
            "ntokens": NumelDataset(rows, reduce=True),
        }
        if labelled(split):
            batch["target"] = RawLabelDataset(load_targets(folder, self.prepared, split))
        nested = NestedDictionaryDataset(batch, sizes=[rows.sizes])
        self.datasets[split] = DealtRowsDataset(nested, self.cfg.seed if split == "train" else None)

    def metric_names(self) -> dict[str, Sequence[str]]:
        """What a validation reports, by the name of the criterion."""
        names = self.prepared.task.metrics
        means = (BATCH_MEAN + name for name in names)
        return {"tupe_sentence_prediction": ("loss", *names, *means)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called by fairseq-validate, and wherever fairseq makes a task from a checkpoint.

        Raises:
            ValueError: the checkpoint was trained with another vocabulary, or on another task.
        """
        trained = state_dict.get(GLUE_TASK) if isinstance(state_dict, dict) else None
        if trained not in (None, self.prepared.task.name):
            raise ValueError(
                f"the checkpoint was fine-tuned on {trained}, and {self.cfg.data} is of "
                f"{self.prepared.task.name}"
            )
        super().load_state_dict(state_dict)

    def prepare_model(self, model: Any) -> None:
        """Gives the model a sentence head for the task."""
        model.register_classification_head(self.cfg.classification_head_name, self.prepared.task.outputs)
        # Nothing here uses the LM head. Without a gradient it is neither decayed (the authors' code leaves it
        # as it was, too) nor waited for by DistributedDataParallel.
        model.lm_head.requires_grad_(False)

    def reduce_metrics(self, logging_outputs: list, criterion: Any) -> None:
        """Logs what the criterion does and, in evaluation, the task's metrics over all rows so far."""
        super().reduce_metrics(logging_outputs, criterion)
        log_scores(self.prepared.task.metrics, logging_outputs)

    def post_validate(self, model: Any, stats: dict, agg: dict) -> None:
        """Called by fairseq after each validation: forgets its rows.

        fairseq keeps a collection of meters named "valid" for the whole run and saves it in checkpoints; the
        rows of a validation would stay there, and be added to those of the next.
        """
        metrics.reset_meter("valid", ROWS)
