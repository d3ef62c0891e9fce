"""Prints the flags of fairseq-train that a GLUE task, its data and a checkpoint determine, one word a line.

    python -m tupe_fairseq.glue_flags TASK GLUE_BIN CHECKPOINT [flags given to fairseq-train]

The given flags count where the number of updates depends on them.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from . import checkpoints
from .checkpoints import SHAPE, check_vocabulary
from .glue import LONGEST, PreparedTask
from .vocabulary import (
    DICTIONARY_FILE,
    MASK,
    MODEL_FILE,
    SPECIALS,
    Vocabulary,
    dictionary_fingerprint,
    read_dictionary,
)

WARMUP = 0.06  # of all updates; TUPE, arXiv:2006.15595, appendix (fine-tuning)


def shape_flags(options: dict[str, Any], max_positions: int) -> list[str]:
    """Architecture and shape of the checkpoint, and the longest row that both paper and model allow.

    Args:
        max_positions: those that the model will have; more than its checkpoint's with --resize-positions.
    """
    words = ["--arch", options["_name"]]
    for name in SHAPE:
        words += [f"--{name.replace('_', '-')}", str(options[name])]
    return [*words, "--tokens-per-sample", str(min(LONGEST, max_positions))]


def schedule_flags(prepared: PreparedTask, given: list[str]) -> list[str]:
    """Epochs, updates and warm-up, from the training rows, the table's epochs and the given flags.

    Raises:
        ValueError: no batch size is given, so nobody knows the number of updates.
    """
    args = _parse(given)
    if args.max_epoch is not None and args.max_epoch < 1:
        raise ValueError(f"--max-epoch {args.max_epoch} would train without end; give 1 or more")
    if args.max_tokens is not None and args.total_num_update is None:
        raise ValueError("with --max-tokens nobody knows the number of updates; give --total-num-update, too")
    if min(1 if args.batch_size is None else args.batch_size, *args.update_freq) < 1:
        raise ValueError("--batch-size and --update-freq must be 1 or more")
    epochs = args.max_epoch or prepared.task.epochs
    if args.total_num_update is None and args.batch_size is None:
        raise ValueError("--batch-size is missing; without it, give --total-num-update and --warmup-updates")
    total = args.total_num_update or count_updates(
        prepared.rows["train"], epochs, args.batch_size, args.distributed_world_size, args.update_freq
    )
    if args.max_update:
        total = min(total, args.max_update)
    warmup = max(1, int(WARMUP * total))  # truncated, as in the authors' code
    return [
        *("--max-epoch", str(epochs)),
        *("--total-num-update", str(total)),
        *("--warmup-updates", str(warmup)),
    ]


def count_updates(rows: int, epochs: int, batch_size: int, workers: int, update_freq: list[int]) -> int:
    """Updates of a whole training. Every epoch ends with a smaller batch rather than leaving rows out.

    Args:
        batch_size: rows of a batch, each worker has its own.
        update_freq: batches of an update, by epoch; the last holds on.
    """
    batches = math.ceil(math.ceil(rows / batch_size) / workers)
    return sum(math.ceil(batches / update_freq[min(i, len(update_freq) - 1)]) for i in range(epochs))


def _parse(given: list[str]) -> argparse.Namespace:
    """Those of fairseq-train's flags that others depend on."""
    parser = argparse.ArgumentParser(prog="finetune_glue", allow_abbrev=False, add_help=False)
    parser.add_argument("--batch-size", "--max-sentences", type=int)
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--update-freq", type=lambda text: [int(n) for n in text.split(",")], default=[1])
    parser.add_argument("--max-epoch", type=int)
    parser.add_argument("--max-update", type=int)
    parser.add_argument("--total-num-update", type=int)
    parser.add_argument("--distributed-world-size", type=int, default=1)
    parser.add_argument("--max-positions", type=int)
    return parser.parse_known_args(given)[0]


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder, of a checkpoint for example, has the files of a vocabulary."""
    return all((folder / name).is_file() for name in (MODEL_FILE, DICTIONARY_FILE))


def check_data(state: dict[str, Any], checkpoint: Path, folder: Path, prepared: PreparedTask) -> None:
    """Refuses a prepared task whose ids mean something else to a checkpoint.

    Args:
        state: what ``checkpoints.load`` returns.
        checkpoint: where that came from; the vocabulary that the scripts put beside it counts, too.
        folder: of the prepared task.

    Raises:
        ValueError: other pieces, or the same pieces cut by another SentencePiece model.
    """
    symbols = [*SPECIALS, *read_dictionary(folder / DICTIONARY_FILE), MASK]
    check_vocabulary(state, checkpoint, len(symbols), dictionary_fingerprint(symbols))
    own = checkpoint.parent
    if has_vocabulary(own) and Vocabulary(own).fingerprint != prepared.vocabulary:
        raise ValueError(
            f"{folder} was not encoded with {own / MODEL_FILE}, which the model was trained with; "
            f"prepare the task again with scripts/prepare_glue.sh -c {own}"
        )


def flags(name: str, glue_bin: Path, checkpoint: Path, given: list[str]) -> list[str]:
    """All flags, one word each.

    Raises:
        FileNotFoundError: the checkpoint or the prepared task does not exist.
        ValueError: they do not fit each other, or the checkpoint cannot be used.
    """
    prepared = PreparedTask.load(glue_bin / name, name)
    for split in ("train", "valid"):
        if split not in prepared.rows:
            file = prepared.task.splits[split].file if split in prepared.task.splits else "file"
            raise ValueError(f"{glue_bin / name} has no {split} rows; GLUE_DIR lacked its {file}")
    state = checkpoints.load(checkpoint)
    options = checkpoints.model_options(state, checkpoint)
    check_data(state, checkpoint, glue_bin / name, prepared)
    max_positions = _parse(given).max_positions or options["max_positions"]
    if max_positions < LONGEST:
        more = "" if "--resize-positions" in given else " (--max-positions N --resize-positions makes room)"
        print(
            f"note: the model has positions for {max_positions} tokens; longer rows are cut{more}",
            file=sys.stderr,
        )
    return [
        *shape_flags(options, max_positions),
        *schedule_flags(prepared, given),
        *("--valid-subset", ",".join(split for split in prepared.rows if split.startswith("valid"))),
        *("--best-checkpoint-metric", prepared.task.metrics[0], "--maximize-best-checkpoint-metric"),
    ]


def main() -> None:
    """The command line."""
    if len(sys.argv) < 4 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    name, glue_bin, checkpoint, *given = sys.argv[1:]
    try:
        print("\n".join(flags(name, Path(glue_bin), Path(checkpoint), given)))
    except (OSError, ValueError) as error:
        sys.exit(f"finetune_glue: {error}")


if __name__ == "__main__":
    main()
