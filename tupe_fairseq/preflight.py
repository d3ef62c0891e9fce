"""What is looked at when a training starts, before data is read and a model is built."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from . import token_file
from .workers import check_workers

logger = logging.getLogger(__name__)


def whole_config(cfg: Any) -> Any:
    """fairseq's whole configuration; it passes a part, which knows the whole it is part of."""
    return cfg._get_root() if OmegaConf.is_config(cfg) else {}


def start(cfg: Any, from_checkpoint: bool = False) -> Any:
    """The whole configuration where a training is about to start, else None.

    Args:
        cfg: a part of it.
        from_checkpoint: fairseq makes task or model again from that of an earlier training.
    """
    whole = whole_config(cfg)
    return whole if "checkpoint" in whole and not from_checkpoint else None


def check_run(whole: Any) -> None:
    """Refuses what this machine or this plugin cannot do.

    Args:
        whole: fairseq's whole configuration.

    Raises:
        ValueError: a kind of numbers, or of sharing a model out, that needs a GPU without one; or one process
            of several that fairseq was not told of; or checkpoints written while the training goes on.
    """
    gpu = torch.cuda.is_available() and not whole.common.cpu
    check_workers(whole.distributed_training.distributed_world_size, os.environ)
    for name in ("fp16", "memory_efficient_fp16", "bf16", "memory_efficient_bf16", "amp"):
        if whole.common[name] and not gpu:
            raise ValueError(f"--{name.replace('_', '-')} needs a GPU, and this run has none; leave it out")
    if whole.distributed_training.ddp_backend == "fully_sharded":
        if not (gpu and find_spec("fairscale")):
            raise ValueError(
                "--ddp-backend fully_sharded needs GPUs and fairscale (pip install fairscale); leave it out, "
                "and every process keeps the whole model"
            )
        logger.warning("--ddp-backend fully_sharded was never run with this plugin")
    if whole.checkpoint.write_checkpoints_asynchronously:
        raise ValueError(
            "--write-checkpoints-asynchronously leaves the run without checkpoint_last.pt in fairseq 0.12; "
            "leave it out"
        )


def valid_subsets(whole: Any) -> list[str]:
    """Names of the data sets that validations read."""
    return [] if whole.dataset.disable_validation else whole.dataset.valid_subset.split(",")


def check_files(prefixes: Iterable[Path], symbols: int) -> None:
    """Refuses token files that cannot be read.

    Args:
        prefixes: their names without .bin and .idx.
        symbols: of their dictionary.

    Raises:
        FileNotFoundError, PermissionError: named.
        ValueError: a file is damaged.
    """
    for prefix in prefixes:
        for path in (prefix.with_name(f"{prefix.name}.idx"), prefix.with_name(f"{prefix.name}.bin")):
            if not path.is_file():
                raise FileNotFoundError(f"no file {path}; scripts/prepare_corpus.sh makes it in CORPUS/bin")
            if not os.access(path, os.R_OK):
                raise PermissionError(f"cannot read {path}; give yourself the right to")
        token_file.check(prefix, symbols)


def check_batch(rows: int, source: str, whole: Any) -> None:
    """Refuses data that is too small for an update, which would be smaller than asked for, too.

    Args:
        rows: samples that can be used.
        source: where they are.
        whole: fairseq's whole configuration.

    Raises:
        ValueError: an update asks for more samples.
    """
    batch, every = whole.dataset.batch_size, whole.optimization.update_freq[0]
    workers = whole.distributed_training.distributed_world_size
    if batch is not None and rows < batch * every * workers:
        raise ValueError(
            f"{source} has {rows:,} samples to train on, and an update needs {batch * every * workers:,} "
            f"(--batch-size {batch} x --update-freq {every} x {workers} process(es)); lower one of them"
        )
