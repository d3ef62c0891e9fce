"""What the tasks of this plugin share: the vocabulary, and a look at the checkpoint they start from."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask

from .blocks import adjust_iterator
from .checkpoints import VOCABULARY, load
from .forecast import Forecast, planned_updates
from .optimizer import mark_no_decay
from .preflight import check_batch, start
from .restoring import check_start, find_start, finished, running_averages, skip_damaged
from .safeguards import install
from .save_folder import lock, remove_leftovers
from .vocabulary import MASK, dictionary_fingerprint

logger = logging.getLogger(__name__)


SHOWN_ROWS = 2  # of a validation set, to measure attention logits on


class TupeTask(FairseqTask):
    """A task whose checkpoints know their vocabulary."""

    def __init__(self, cfg: Any, dictionary: Dictionary) -> None:
        super().__init__(cfg)
        self.dictionary = dictionary
        self.mask_idx = dictionary.add_symbol(MASK)  # behind the last piece, in every task
        self._averages: dict[str, Any] = {}
        self._forecast: Forecast | None = None
        self._updates = 0
        self._tensorboard: Path | None = None
        self._monitor: Any = None
        self.fingerprint = dictionary_fingerprint(dictionary.symbols)
        self.state.merge_state_dict({VOCABULARY: self.fingerprint})  # fairseq keeps it in checkpoints

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Called by fairseq-validate, and wherever fairseq makes a task from a checkpoint.

        Raises:
            ValueError: the checkpoint was trained with another vocabulary.
        """
        if not isinstance(state_dict, dict) or state_dict.get(VOCABULARY) is None:
            logger.warning("the checkpoint has no fingerprint of its vocabulary; it may be another")
        elif state_dict[VOCABULARY] != self.fingerprint:
            raise ValueError(
                f"the checkpoint was trained with another vocabulary than that of {self.cfg.data}; "
                "name a data folder that was prepared with its own"
            )
        if isinstance(state_dict, dict):
            super().load_state_dict(state_dict)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Builds the model; where a training is about to start, looks at the checkpoint it starts from.

        Raises:
            FileNotFoundError: that does not exist.
            ValueError: it does not fit, or the metric that is to choose checkpoints does not exist.
        """
        whole = start(cfg, from_checkpoint)
        if whole:
            self._check_metric(whole)
        model = super().build_model(cfg, from_checkpoint)
        self.prepare_model(model)
        if whole:
            if getattr(whole.optimizer, "selective_weight_decay", False):
                mark_no_decay(model)
            install(whole.checkpoint.save_dir)
            self._forecast = Forecast(planned_updates(whole))
            if whole.distributed_training.distributed_rank == 0 and not self.cfg.no_position_logs:
                self._tensorboard = whole.common.tensorboard_logdir and Path(whole.common.tensorboard_logdir)
            self._look_at_start(model, whole)
        return model

    def _look_at_start(self, model: Any, whole: Any) -> None:
        """Takes SAVE_DIR, and looks at the checkpoint that the training starts from."""
        options = whole["checkpoint"]
        if whole.distributed_training.distributed_rank == 0 and not options.no_save:
            take(Path(options.save_dir))
        skip_damaged(options)
        begin = find_start(options)
        if begin is None:
            return
        state = load(begin.path)
        check_start(begin, state, model, self.state_dict())
        end = finished(begin, state, whole)
        if end is not None:
            logger.info(end)
            sys.exit(0)
        if begin.resumed and not options.reset_meters:
            self._averages = running_averages(state)

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Takes up the averages of the log where the run was cut.

        fairseq drops all averages at the end of an epoch, also those between two lines of the log, which
        reach over it.
        """
        super().begin_epoch(epoch, model)
        metrics.load_state_dict(self._averages)
        self._averages = {}

    def train_step(
        self,
        sample: dict[str, Any],
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> tuple[Any, Any, dict[str, Any]]:
        """fairseq's step; counts padding, and says once how long the training will take."""
        self._updates = update_num + 1
        if self._forecast:
            line = self._forecast.line(update_num, time.monotonic())
            if line:
                logger.info(line)
        step = super().train_step(sample, model, criterion, optimizer, update_num, ignore_grad)
        return self._with_padding(step, sample)

    def valid_step(
        self, sample: dict[str, Any], model: Any, criterion: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """fairseq's step; counts padding."""
        return self._with_padding(super().valid_step(sample, model, criterion), sample)

    def _with_padding(self, step: tuple[Any, Any, dict[str, Any]], sample: dict[str, Any]) -> Any:
        tokens = sample["net_input"]["src_tokens"]
        step[2].update(padding=tokens.eq(self.dictionary.pad()).sum(), cells=tokens.numel())
        return step

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Logs what fairseq logs, and the share of padding in percent."""
        super().reduce_metrics(logging_outputs, criterion)
        cells = sum(log.get("cells", 0) for log in logging_outputs)
        padding = sum(log.get("padding", 0) for log in logging_outputs)
        metrics.log_scalar("padding", 100 * padding / max(cells, 1), cells, round=1)

    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        """Shows in TensorBoard what positions do in this model."""
        super().begin_valid_epoch(epoch, model)
        if not self._tensorboard:
            return
        if self._monitor is None:
            from .monitor import Monitor  # with matplotlib; most processes do without

            self._monitor = Monitor(self._tensorboard)
        rows = next(iter(self.datasets.values()))
        batch = rows.collater([rows[i] for i in range(min(len(rows), SHOWN_ROWS))])
        tokens = batch["net_input"]["src_tokens"]
        shortest = int(tokens.ne(self.dictionary.pad()).sum(dim=1).min())
        device = next(model.parameters()).device
        self._monitor.log(model, tokens[:, :shortest].to(device), self._updates)

    def check_rows(self, split: str, rows: int, epoch: int) -> None:
        """Refuses training data that is too small for an update; a later shard in the midst of a run is told.

        Raises:
            ValueError: an update asks for more rows.
        """
        whole = start(self.cfg)
        if whole and split == "train":
            try:
                check_batch(rows, f"{self.cfg.data} ({split}, epoch {epoch})", whole)
            except ValueError as error:
                if epoch == 1:
                    raise
                logger.warning(error)

    def prepare_model(self, model: Any) -> None:
        """What a task changes in a model before any weights are loaded into it."""

    def metric_names(self) -> dict[str, Sequence[str]]:
        """What a validation reports, by the name of the criterion."""
        raise NotImplementedError

    def _check_metric(self, whole: Any) -> None:
        """fairseq would find out after the first validation that there is no such metric."""
        name, names = whole.checkpoint.best_checkpoint_metric, self.metric_names().get(whole.criterion._name)
        if names is not None and name not in names and not whole.dataset.disable_validation:
            raise ValueError(f"--best-checkpoint-metric {name} is not reported; there are {', '.join(names)}")

    def get_batch_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """fairseq's iterator, adjusted: every epoch sees its own data, and the end is clean."""
        return adjust_iterator(super().get_batch_iterator(*args, **kwargs))

    def max_positions(self) -> int:
        """Longest row of a batch in tokens."""
        return self.cfg.tokens_per_sample

    @property
    def source_dictionary(self) -> Dictionary:
        """The vocabulary; ``<mask>`` is its last symbol."""
        return self.dictionary

    @property
    def target_dictionary(self) -> Dictionary:
        """The same vocabulary."""
        return self.dictionary


def read_dictionary(path: Path) -> Dictionary:
    """A file of fairseq's Dictionary.

    Raises:
        ValueError: it is none.
    """
    try:
        return Dictionary.load(str(path))
    except Exception as error:  # fairseq raises no better
        reason = repr(str(error))
        raise ValueError(f"{path} is no dictionary ({reason:.100}); prepare the data again") from None


def take(save_dir: Path) -> None:
    """SAVE_DIR for this run alone, without the half files of one that was killed.

    Raises:
        ValueError: another run trains into it.
    """
    if save_dir.is_dir():  # fairseq-train has made it
        lock(save_dir)
        for name in remove_leftovers(save_dir):
            logger.info("removed %s, a checkpoint that was not written to its end", save_dir / name)
