"""Rows of a sentence task as fairseq datasets: one or two sentences joined and cut, and batches of all rows.

Shapes: N rows of a split.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import FairseqDataset
from fairseq.data.indexed_dataset import MMapIndexedDataset
from torch import Tensor

from . import token_file
from .blocks import EveryRowDataset
from .glue import DESCRIPTION_FILE, PreparedTask
from .glue_rows import check_label
from .glue_task import GlueTask
from .vocabulary import BOS, EOS

logger = logging.getLogger(__name__)

# Rows sorted by length together: 8 batches of the paper's 32; 18% of RTE's are padding then (61% without). In
# larger groups less is, but batches of one length are no random ones: on the quickstart's task, MCC over six
# seeds was 0.597 (sd 0.008) without groups, 0.591 (0.020) with 256 rows and 0.574 (0.008) with 1,024.
GROUP = 256


def read_targets(path: Path, task: GlueTask) -> np.ndarray:
    """Label ids (N,), int64, by the order of the task's labels; for regression scaled numbers (N,), float64.

    float64, since fairseq's --fp16 would round float32 labels to half precision.

    Raises:
        ValueError: the task does not have a label.
    """
    labels = path.read_text(encoding="utf-8", errors="replace").splitlines()  # damaged ones are of no task
    for number, label in enumerate(labels, start=1):
        try:
            check_label(label, task)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    if task.regression:
        return np.array([float(label) for label in labels]) / task.label_scale
    return np.array([task.labels.index(label) for label in labels])


def label_file(folder: Path, split: str) -> Path:
    """Where a prepared folder has the labels of a split.

    Raises:
        FileNotFoundError: it has none.
    """
    return existing(folder / "label" / f"{split}.label")


def load_targets(folder: Path, prepared: PreparedTask, split: str) -> np.ndarray:
    """The targets (N,) of a split in a prepared folder, as `read_targets` gives them.

    Raises:
        FileNotFoundError: there are none.
        ValueError: they are not as many as there are rows, or the task does not have a label.
    """
    path, rows = label_file(folder, split), prepared.rows[split]
    targets = read_targets(path, prepared.task)
    if len(targets) != rows:
        raise ValueError(f"{path}: {len(targets)} labels, {rows} rows; prepare the task again")
    return targets


def load_rows(
    folder: Path, prepared: PreparedTask, split: str, longest: int, symbols: int
) -> SentencesDataset:
    """The rows of a split in a prepared folder, of a vocabulary of so many symbols, cut to `longest` tokens.

    Raises:
        FileNotFoundError: a file of the split does not exist.
        ValueError: the files are damaged, or do not fit each other.
    """
    sentences = []
    for i in range(len(prepared.task.inputs)):
        prefix = folder / f"input{i}" / split
        for suffix in (".idx", ".bin"):
            existing(prefix.with_suffix(suffix))
        token_file.check(prefix, symbols)
        sentences.append(MMapIndexedDataset(str(prefix)))
        found, expected = len(sentences[i]), prepared.rows[split]
        if found != expected:
            raise ValueError(
                f"{prefix} has {found} rows, {DESCRIPTION_FILE} {expected}; prepare the task again"
            )
    return SentencesDataset(sentences, longest)


def existing(path: Path) -> Path:
    """A path of a prepared folder.

    Raises:
        FileNotFoundError: it does not exist.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no {path}; scripts/prepare_glue.sh makes it")
    return path


class SentencesDataset(FairseqDataset):
    """``<s> A </s>`` or ``<s> A </s> </s> B </s>`` from rows of one or two datasets, each ending in ``</s>``.

    Where that is longer than ``longest`` tokens, the longer of A and B loses tokens at its end until it fits.
    """

    def __init__(self, sentences: Sequence[Any], longest: int) -> None:
        self.sentences = sentences
        lengths = [np.asarray(dataset.sizes, dtype=np.int64) for dataset in sentences]
        room = longest - len(sentences)  # for A </s> and B </s>, without the <s> or </s> before each
        self.kept = fit(lengths, room)
        kept, before = np.sum(self.kept, axis=0), np.sum(lengths, axis=0)
        self.cut = int((kept < before).sum())  # rows
        self._sizes = kept + len(sentences)

    def __getitem__(self, index: int) -> Tensor:
        parts = []
        for before, dataset, kept in zip((BOS, EOS), self.sentences, self.kept):
            sentence = dataset[index][: kept[index] - 1]
            parts += [torch.tensor([before]), sentence, torch.tensor([EOS])]
        return torch.cat(parts)

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def sizes(self) -> np.ndarray:
        """Tokens of every row."""
        return self._sizes


def fit(lengths: Sequence[np.ndarray], room: int) -> list[np.ndarray]:
    """How many tokens of each sentence stay, so that a row has ``room`` at most; equal ones halve it.

    Args:
        lengths: (N,) for each of the one or two sentences.
    """
    if len(lengths) == 1:
        return [np.minimum(lengths[0], room)]
    first, second = lengths
    return [
        np.minimum(first, np.maximum(room - second, room - room // 2)),
        np.minimum(second, np.maximum(room - first, room // 2)),
    ]


class DealtRowsDataset(EveryRowDataset):
    """Rows in their order, or for training in a new order every epoch, so that batches are dealt anew.

    Rows of about the same length stand together, so that little is padded: the shuffled rows are sorted by
    length within groups of GROUP. fairseq shuffles the batches, here as in its SortDataset, which draws the
    rows of a batch once for all epochs.
    """

    def __init__(self, dataset: FairseqDataset, shuffle_seed: int | None) -> None:
        super().__init__(dataset)
        self.shuffle_seed = shuffle_seed
        self.epoch = 1

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order."""
        super().set_epoch(epoch)
        self.epoch = epoch

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """Whether the batches of all epochs are the same."""
        return self.shuffle_seed is None

    def ordered_indices(self) -> np.ndarray:
        """Row numbers (N,) in the order in which batches take them."""
        if self.shuffle_seed is None:
            return np.arange(len(self))
        rows = np.random.default_rng([self.shuffle_seed, self.epoch]).permutation(len(self))
        group = np.arange(len(self)) // GROUP
        # Every other group begins with its longest rows, so that a batch over two groups has like ones too.
        length = self._lengths[rows] * np.where(group % 2, -1, 1)
        return rows[np.lexsort((length, group))]

    def batch_by_size(self, indices: np.ndarray, *args: Any, **options: Any) -> Any:
        """Batches of row numbers; in the first epoch the log says how much of them is padding."""
        batches = super().batch_by_size(indices, *args, **options)
        if self.epoch == 1:
            logger.info("%s batches, %.1f%% of them padding", len(batches), 100 * self.padded_share(batches))
        return batches

    def padded_share(self, batches: Sequence[np.ndarray]) -> float:
        """Padding in the batches, as a share of all their tokens."""
        tokens = sum(int(self._lengths[batch].sum()) for batch in batches)
        return 1 - tokens / sum(int(self._lengths[batch].max()) * len(batch) for batch in batches)

    @property
    def _lengths(self) -> np.ndarray:
        return np.asarray(self.sizes).reshape(-1)  # NestedDictionaryDataset gives a list of one array

    def collater(self, samples: list) -> dict[str, Any]:
        """A batch, with the number of all rows; nothing for no rows, with which fairseq fills up shards."""
        batch = super().collater(samples)
        return {**batch, "split_rows": len(self)} if samples else batch
