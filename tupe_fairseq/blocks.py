"""Blocks of text as fairseq datasets: long lines split, <s> kept, no row left out of the batches."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from fairseq.data import BaseWrapperDataset, Dictionary, FairseqDataset
from torch import Tensor

from .vocabulary import MASK

logger = logging.getLogger(__name__)


def adjust_iterator(iterator: Any) -> Any:
    """Returns a batch iterator of fairseq with what goes wrong in it put right.

    - Data workers are new every epoch. fairseq 0.12.3 keeps them for the whole run, each with a copy of the
      dataset whose epoch never moves, so that every epoch would have the masks of the first.
    - Without workers there is no thread that loads ahead: torch may abort the process when it ends in one.
    """
    iterator.reuse_dataloader = iterator.persistent_workers = False
    if not iterator.num_workers:
        iterator.buffer_size = 0
    return iterator


class SplitLinesDataset(BaseWrapperDataset):
    """Lines longer than ``longest`` tokens, split into the fewest pieces of (nearly) equal length.

    Equal, because a piece of a single token would look like the row that separates two documents; with 3
    tokens or more a piece never gets that short. With drop_separators those rows, a lone ``</s>`` each, are
    left out.
    """

    def __init__(self, lines: FairseqDataset, longest: int, drop_separators: bool = False) -> None:
        super().__init__(lines)
        self.lengths = np.asarray(lines.sizes)
        pieces = -(-self.lengths // longest)
        if drop_separators:
            pieces[self.lengths == 1] = 0
        self.ends = np.cumsum(pieces)  # pieces up to and with each line
        self._sizes = self._piece_sizes(pieces)
        self._tell(pieces, longest)

    def _piece_sizes(self, pieces: np.ndarray) -> np.ndarray:
        line = np.repeat(np.arange(len(pieces), dtype=np.int32), pieces)
        start, stop = self._bounds(np.arange(len(line)), line)
        return (stop - start).astype(np.int32)

    def _tell(self, pieces: np.ndarray, longest: int) -> None:
        long_lines = pieces > 1
        if long_lines.any():
            logger.info(
                "%s of %s lines (%.2f%%, with %.2f%% of the tokens) exceed the %s tokens of a block: "
                "split into %s pieces",
                *(f"{n:,}" for n in (long_lines.sum(), len(pieces))),
                100 * long_lines.mean(),
                100 * self.lengths[long_lines].sum() / self.lengths.sum(),
                longest,
                f"{pieces[long_lines].sum():,}",
            )

    def _bounds(self, index: Any, line: Any) -> Any:
        """Where a piece, or an array of pieces, begins and ends in its line."""
        before = np.where(line > 0, self.ends[line - 1], 0)
        pieces, length = self.ends[line] - before, self.lengths[line].astype(np.int64)
        return (index - before) * length // pieces, (index - before + 1) * length // pieces

    def __getitem__(self, index: int) -> Tensor:
        line = np.searchsorted(self.ends, index, side="right")
        start, stop = self._bounds(index, line)
        return self.dataset[int(line)][start:stop]

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def sizes(self) -> np.ndarray:
        """Tokens of every piece."""
        return self._sizes

    def num_tokens(self, index: int) -> int:
        """Tokens of a piece."""
        return self._sizes[index]

    def size(self, index: int) -> int:
        """Tokens of a piece."""
        return self._sizes[index]


class EveryRowDataset(BaseWrapperDataset):
    """Rows none of which is left out of the batches.

    fairseq rounds batches down to multiples of ``--required-batch-size-multiple``, 8 unless told otherwise,
    and so leaves out the rows of a last batch that is smaller.
    """

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> Any:
        """Batches of row numbers."""
        return super().batch_by_size(indices, max_tokens, max_sentences, required_batch_size_multiple=1)


class FirstTokenDataset(BaseWrapperDataset):
    """Rows whose first token is put back to a fixed one, whatever the masking did to it."""

    def __init__(self, dataset: FairseqDataset, token: int) -> None:
        super().__init__(dataset)
        self.token = token

    def __getitem__(self, index: int) -> Tensor:
        row = self.dataset[index].clone()
        row[0] = self.token
        return row


def word_starts(dictionary: Dictionary) -> Tensor:
    """1 for ids that start a word (specials, ``<mask>``, pieces with SentencePiece's ``▁``), 0 for others."""
    starts = [
        i < dictionary.nspecial or dictionary[i].startswith(("▁", MASK)) for i in range(len(dictionary))
    ]
    return torch.tensor(starts, dtype=torch.uint8)
