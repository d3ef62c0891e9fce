"""The fairseq task ``tupe_masked_lm``: blocks of text with ``<s>`` first, some of their tokens masked."""

# No "from __future__ import annotations" here: fairseq reads the types of the fields, not their names.

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.data import (
    BaseWrapperDataset,
    Dictionary,
    FairseqDataset,
    IdDataset,
    MaskTokensDataset,
    NestedDictionaryDataset,
    NumelDataset,
    NumSamplesDataset,
    PrependTokenDataset,
    RightPadDataset,
    SortDataset,
    TokenBlockDataset,
    data_utils,
)
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.tasks import FairseqTask, register_task
from omegaconf import II, MISSING
from torch import Tensor

from .vocabulary import MASK

logger = logging.getLogger(__name__)


@dataclass
class TupeMaskedLMConfig(FairseqDataclass):
    """The options of the task; they carry the names that fairseq's ``masked_lm`` has."""

    data: str = field(
        default=MISSING,
        metadata={"help": "folder of prepared text; several, joined by ':', are taken in turn, one an epoch"},
    )
    tokens_per_sample: int = field(
        default=512, metadata={"help": "tokens of a block, <s> included; also the model's --max-positions"}
    )
    sample_break_mode: ChoiceEnum(["none", "complete", "complete_doc", "eos"]) = field(
        default="complete",
        metadata={
            "help": "none: blocks are cut anywhere; complete: they hold whole lines; complete_doc: of one "
            "document; eos: one line each"
        },
    )
    mask_prob: float = field(default=0.15, metadata={"help": "share of tokens to predict"})
    leave_unmasked_prob: float = field(default=0.1, metadata={"help": "share of those left as they are"})
    random_token_prob: float = field(default=0.1, metadata={"help": "share of those replaced at random"})
    freq_weighted_replacement: bool = field(
        default=False, metadata={"help": "draw replacements by their frequency in the corpus"}
    )
    mask_whole_words: bool = field(default=False, metadata={"help": "mask all pieces of a word or none"})
    seed: int = II("common.seed")


@register_task("tupe_masked_lm", dataclass=TupeMaskedLMConfig)
class TupeMaskedLMTask(FairseqTask):
    """Masked language modelling as fairseq has it, with what TUPE needs and SentencePiece asks for.

    ``<s>`` stands at position 0 of every block and is never masked, since the model treats that position as
    [CLS]. Lines longer than a block are split, not dropped.
    """

    cfg: TupeMaskedLMConfig

    def __init__(self, cfg: TupeMaskedLMConfig, dictionary: Dictionary) -> None:
        super().__init__(cfg)
        self.dictionary = dictionary
        self.mask_idx = dictionary.add_symbol(MASK)

    @classmethod
    def setup_task(cls, cfg: TupeMaskedLMConfig, **kwargs: Any) -> "TupeMaskedLMTask":
        """Reads the dictionary of the (first) data folder.

        Raises:
            ValueError: a block would hold no text.
            FileNotFoundError: no dictionary there.
        """
        if cfg.tokens_per_sample < 3:
            raise ValueError(
                f"--tokens-per-sample {cfg.tokens_per_sample} leaves no room: a block is <s>, text and </s>"
            )
        path = Path(utils.split_paths(cfg.data)[0], "dict.txt")
        if not path.is_file():
            raise FileNotFoundError(f"no dictionary {path}; scripts/prepare_corpus.sh makes one in CORPUS/bin")
        dictionary = Dictionary.load(str(path))
        logger.info("dictionary: %s types", f"{len(dictionary):,}")
        return cls(cfg, dictionary)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Loads a split: ``src_tokens`` with masks, and ``target`` with the pad index where none is.

        Training draws fresh masks every epoch. Validation keeps those of epoch 1, as fairseq never moves the
        epoch of a validation set.

        Raises:
            FileNotFoundError: the split does not exist.
        """
        pad, bos = self.dictionary.pad(), self.dictionary.bos()
        blocks = PrependTokenDataset(self._load_blocks(split, epoch, combine), bos)
        masked, target = MaskTokensDataset.apply_mask(
            blocks,
            self.dictionary,
            pad_idx=pad,
            mask_idx=self.mask_idx,
            seed=self.cfg.seed,
            mask_prob=self.cfg.mask_prob,
            leave_unmasked_prob=self.cfg.leave_unmasked_prob,
            random_token_prob=self.cfg.random_token_prob,
            freq_weighted_replacement=self.cfg.freq_weighted_replacement,
            mask_whole_words=word_starts(self.dictionary) if self.cfg.mask_whole_words else None,
        )
        masked, target = FirstTokenDataset(masked, bos), FirstTokenDataset(target, pad)
        with data_utils.numpy_seed(self.cfg.seed):
            shuffle = np.random.permutation(len(blocks))
        batch = {
            "id": IdDataset(),
            "net_input": {
                "src_tokens": RightPadDataset(masked, pad_idx=pad),
                "src_lengths": NumelDataset(masked, reduce=False),
            },
            "target": RightPadDataset(target, pad_idx=pad),
            "nsentences": NumSamplesDataset(),
            "ntokens": NumelDataset(masked, reduce=True),
        }
        self.datasets[split] = SortDataset(
            NestedDictionaryDataset(batch, sizes=[blocks.sizes]), sort_order=[shuffle, blocks.sizes]
        )

    def _load_blocks(self, split: str, epoch: int, combine: bool) -> FairseqDataset:
        """The blocks of a split, of ``tokens_per_sample - 1`` tokens at most, <s> still missing."""
        paths = utils.split_paths(self.cfg.data)
        path = os.path.join(paths[(epoch - 1) % len(paths)], split)
        lines = data_utils.load_indexed_dataset(path, self.dictionary, combine=combine)
        if lines is None or len(lines) == 0:
            raise FileNotFoundError(f"no text in {path}.bin and .idx; scripts/prepare_corpus.sh makes them")
        block_size, mode = self.cfg.tokens_per_sample - 1, str(self.cfg.sample_break_mode)
        if mode == "eos":
            blocks = SplitLinesDataset(lines, block_size, drop_separators=True)
        else:
            if mode != "none":
                lines = SplitLinesDataset(lines, block_size)
            blocks = TokenBlockDataset(
                lines,
                lines.sizes,
                block_size,
                pad=self.dictionary.pad(),
                eos=self.dictionary.eos(),
                break_mode=mode,
            )
        logger.info("%s: %s blocks from %s", split, f"{len(blocks):,}", path)
        return blocks

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Builds the model, and says in the log what is about to be trained."""
        model = super().build_model(cfg, from_checkpoint)
        if not from_checkpoint:
            for line in describe_run(model, cfg._get_root()):
                logger.info(line)
        return model

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


class SplitLinesDataset(BaseWrapperDataset):
    """Lines longer than ``longest`` tokens, split into the fewest pieces of (nearly) equal length.

    Equal, because a piece of a single token would look like the row that separates two documents. With
    drop_separators those rows, a lone ``</s>`` each, are left out.
    """

    def __init__(self, lines: FairseqDataset, longest: int, drop_separators: bool = False) -> None:
        super().__init__(lines)
        self.lengths = np.asarray(lines.sizes, dtype=np.int64)
        self.pieces = -(-self.lengths // longest)
        long_lines = self.pieces > 1
        if drop_separators:
            self.pieces[self.lengths == 1] = 0
        self.ends = np.cumsum(self.pieces)
        line = np.repeat(np.arange(len(self.pieces)), self.pieces)
        start, stop = self._bounds(np.arange(len(line)), line)
        self._sizes = stop - start
        if long_lines.any():
            logger.info(
                "%s of %s lines (%.2f%%, with %.2f%% of the tokens) exceed the %s tokens of a block: "
                "split into %s pieces",
                *(f"{n:,}" for n in (long_lines.sum(), len(self.lengths))),
                100 * long_lines.mean(),
                100 * self.lengths[long_lines].sum() / self.lengths.sum(),
                longest,
                f"{self.pieces[long_lines].sum():,}",
            )

    def _bounds(self, index: Any, line: Any) -> Any:
        piece = index - (self.ends[line] - self.pieces[line])
        length, pieces = self.lengths[line], self.pieces[line]
        return piece * length // pieces, (piece + 1) * length // pieces

    def __getitem__(self, index: int) -> Tensor:
        line = int(np.searchsorted(self.ends, index, side="right"))
        start, stop = self._bounds(index, line)
        return self.dataset[line][start:stop]

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
    """For every id, 1 where a word starts: specials, ``<mask>`` and the pieces that SentencePiece marks ``▁``."""
    starts = [i < dictionary.nspecial or dictionary[i].startswith(("▁", MASK)) for i in range(len(dictionary))]
    return torch.tensor(starts, dtype=torch.uint8)


def describe_run(model: torch.nn.Module, cfg: Any) -> list[str]:
    """What a reader wants to know before the first update: parameters, batch, updates, device.

    Args:
        cfg: fairseq's whole configuration.
    """
    parameters = sum(p.numel() for p in model.parameters())
    workers = cfg.distributed_training.distributed_world_size
    times = f"x update-freq {cfg.optimization.update_freq[0]} x {workers} worker(s)"
    count = cfg.optimization.update_freq[0] * workers
    length = cfg.task.tokens_per_sample
    if cfg.dataset.batch_size is not None:
        rows = cfg.dataset.batch_size * count
        batch = f"{rows:,} sequences of up to {length} tokens, {rows * length:,} tokens"
    else:
        batch = f"up to {cfg.dataset.max_tokens * count:,} tokens in sequences of up to {length}"
    gpu = torch.cuda.is_available() and not cfg.common.cpu
    device = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads"
    return [
        f"model: {cfg.model._name}, {parameters:,} parameters",
        f"an update: {batch} ({cfg.dataset.batch_size or cfg.dataset.max_tokens} {times})",
        f"training: {cfg.optimization.max_update or 'no limit of'} updates, "
        f"{cfg.optimization.max_epoch or 'no limit of'} epochs, on {device}",
    ]
