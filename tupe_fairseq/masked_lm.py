"""The fairseq task ``tupe_masked_lm``: blocks of text with ``<s>`` first, some of their tokens masked."""

# No "from __future__ import annotations" here: fairseq reads the types of the fields, not their names.

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import utils
from fairseq.data import (
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
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from fairseq.tasks import register_task
from omegaconf import II, MISSING

from .attention import choose
from .blocks import EveryRowDataset, FirstTokenDataset, SplitLinesDataset, word_starts
from .config import TupeTaskConfig
from .linear import ONEDNN_FOR_LAYERS
from .preflight import check_files, check_run, start, valid_subsets, whole_config
from .tupe_task import TupeTask, read_dictionary
from .vocabulary import DICTIONARY_FILE

logger = logging.getLogger(__name__)


@dataclass
class TupeMaskedLMConfig(TupeTaskConfig):
    """The options of the task; they carry the names that fairseq's ``masked_lm`` has."""

    data: str = field(
        default=MISSING,
        metadata={"help": "folder of prepared text; several, joined by ':', are taken in turn, one an epoch"},
    )
    tokens_per_sample: int = field(
        default=512, metadata={"help": "tokens of a block, <s> included; also the model's --max-positions"}
    )
    sample_break_mode: ChoiceEnum(["none", "complete", "complete_doc", "eos"]) = field(  # type: ignore[valid-type]
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
class TupeMaskedLMTask(TupeTask):
    """Masked language modelling as fairseq has it, with what TUPE needs and SentencePiece asks for.

    ``<s>`` stands at position 0 of every block and is never masked, since the model treats that position as
    [CLS]. Lines longer than a block are split, not dropped.
    """

    cfg: TupeMaskedLMConfig

    @classmethod
    def setup_task(cls, cfg: TupeMaskedLMConfig, **kwargs: Any) -> "TupeMaskedLMTask":
        """Reads the dictionary of the (first) data folder; where a training starts, looks at all folders.

        Raises:
            ValueError: a block would hold no text, the shares of masked tokens are impossible, or a folder
                has another dictionary than the first.
            FileNotFoundError: no dictionary, or no text, in a folder.
        """
        if cfg.tokens_per_sample < 4:
            raise ValueError(
                f"--tokens-per-sample {cfg.tokens_per_sample} leaves no room for text; give 4 or more"
            )
        shares = {name: getattr(cfg, name) for name in ("leave_unmasked_prob", "random_token_prob")}
        if not 0 < cfg.mask_prob < 1 or min(shares.values()) < 0 or sum(shares.values()) > 1:
            raise ValueError(
                f"--mask-prob {cfg.mask_prob} must lie between 0 and 1, and --leave-unmasked-prob and "
                f"--random-token-prob {tuple(shares.values())} add up to 1 at most"
            )
        folders = [Path(path) for path in utils.split_paths(cfg.data)]
        dictionary = load_dictionary(folders[0])
        logger.info("dictionary: %s types", f"{len(dictionary):,}")
        whole = start(cfg, **kwargs)
        if whole:
            check_run(whole)
            check_shards(folders, dictionary, valid_subsets(whole))
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
        self.check_rows(split, len(blocks), epoch)
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
        nested = NestedDictionaryDataset(batch, sizes=[blocks.sizes])
        self.datasets[split] = EveryRowDataset(SortDataset(nested, sort_order=[shuffle, blocks.sizes]))

    def _load_blocks(self, split: str, epoch: int, combine: bool) -> FairseqDataset:
        """The blocks of a split, of ``tokens_per_sample - 1`` tokens at most, <s> still missing."""
        paths = utils.split_paths(self.cfg.data)
        path = str(Path(paths[(epoch - 1) % len(paths)], split))
        lines = data_utils.load_indexed_dataset(path, self.dictionary, combine=combine)
        if lines is None or len(lines) == 0:
            raise FileNotFoundError(f"no text in {path}.bin and .idx; scripts/prepare_corpus.sh makes them")
        block_size, mode = self.cfg.tokens_per_sample - 1, str(self.cfg.sample_break_mode)
        if mode == "eos":
            blocks = SplitLinesDataset(lines, block_size, drop_separators=True)
        else:
            if mode != "none" and lines.sizes.max() > block_size:
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

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Logs what fairseq logs; a batch without a masked token has no loss, and counts for nothing."""
        if sum(log.get("sample_size", 0) for log in logging_outputs):
            super().reduce_metrics(logging_outputs, criterion)
        else:
            logger.warning("a batch without a masked token: it has no loss, and teaches nothing")
            metrics.log_scalar("loss", 0.0, weight=0, round=3)

    def post_validate(self, model: Any, stats: dict, agg: Any) -> None:
        """Refuses a validation that has no loss to choose checkpoints by.

        Raises:
            ValueError: no token of it was masked.
        """
        if not agg["loss"].count:
            raise ValueError(
                f"no token of the validation text was masked: it is too short for --mask-prob "
                f"{self.cfg.mask_prob}; give more text, or --disable-validation"
            )

    def metric_names(self) -> dict[str, Sequence[str]]:
        """What a validation reports, by the name of the criterion."""
        return {"masked_lm": ("loss", "ppl")}

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Builds the model, and says in the log what is about to be trained."""
        model = super().build_model(cfg, from_checkpoint)
        whole = whole_config(cfg)
        if "dataset" in whole and not from_checkpoint:
            for line in describe_run(model, whole):
                logger.info(line)
        return model


def load_dictionary(folder: Path) -> Dictionary:
    """The dictionary of a folder of prepared text.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file is no dictionary.
    """
    path = folder / DICTIONARY_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no dictionary {path}; scripts/prepare_corpus.sh makes one in CORPUS/bin")
    return read_dictionary(path)


def check_shards(folders: Sequence[Path], dictionary: Dictionary, subsets: Sequence[str]) -> None:
    """Looks at what later epochs will read, so that a run does not end at its second shard.

    Args:
        folders: of prepared text, taken in turn; validations read the first.
        dictionary: of the first.
        subsets: names of the data sets of validations.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or a folder has other pieces than the first, so that its ids mean
            something else.
    """
    trains, valids = (folder / "train" for folder in folders), (folders[0] / name for name in subsets)
    check_files([*trains, *valids], len(dictionary))
    for folder in folders[1:]:
        if load_dictionary(folder).symbols != dictionary.symbols:
            raise ValueError(
                f"{folder / DICTIONARY_FILE} has other pieces than {folders[0] / DICTIONARY_FILE}; "
                "train on folders of one vocabulary"
            )


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
    attention = choose(cfg.model.attention_impl, torch.device("cuda" if gpu else "cpu"))
    products = "oneDNN" if ONEDNN_FOR_LAYERS and not gpu else "torch's choice"
    return [
        f"model: {cfg.model._name}, {parameters:,} parameters",
        f"an update: {batch} ({cfg.dataset.batch_size or cfg.dataset.max_tokens} {times})",
        f"training: {cfg.optimization.max_update or 'no limit of'} updates, "
        f"{cfg.optimization.max_epoch or 'no limit of'} epochs, on {device}",
        f"attention: {attention} (--attention-impl); linear layers: {products}",
    ]
