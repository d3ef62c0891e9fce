"""How long a training takes to make its batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf


def load_batches(flags: Sequence[str], batches: int) -> dict[str, Any]:
    """Seconds in which one process makes each batch: reads it from the files, masks it, pads it.

    Args:
        flags: of fairseq-train, the data first.
        batches: how many to make; the first, which opens the files, is not counted.
    """
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), [*flags]))
    task = tasks.setup_task(cfg.task)
    task.load_dataset("train")
    iterator = task.get_batch_iterator(
        task.dataset("train"),
        max_sentences=cfg.dataset.batch_size,
        max_positions=task.max_positions(),
        ignore_invalid_inputs=True,
        required_batch_size_multiple=cfg.dataset.required_batch_size_multiple,
        seed=cfg.common.seed,
        num_workers=0,
        data_buffer_size=0,
    ).next_epoch_itr(shuffle=True)
    seconds = []
    for _ in range(batches):
        started = time.perf_counter()
        next(iterator)
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds[1:], "types": len(task.source_dictionary)}
