"""What predictions come from: a fine-tuned model, and rows as it reads them, prepared or raw.

Shapes: N rows of a split, C outputs of the sentence head (1 for regression).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from . import checkpoints
from .glue import DESCRIPTION_FILE, LONGEST, PreparedTask
from .glue_data import prepare
from .glue_flags import has_vocabulary
from .glue_rows import find_file
from .glue_task import GlueTask, labelled
from .model import TupeModel, load_model
from .sentence_rows import SentencesDataset
from .vocabulary import DICTIONARY_FILE, MODEL_FILE, PAD


class Finetuned(NamedTuple):
    """A model that reads a task."""

    model: TupeModel
    head: str  # the name of its sentence head
    longest: int  # tokens of a row; longer ones are cut, as in its training


def load_finetuned(state: dict[str, Any], path: Path, task: GlueTask) -> Finetuned:
    """The model of a checkpoint.

    Args:
        state: what ``checkpoints.load`` returns.
        path: where that came from.

    Raises:
        ValueError: it was not fine-tuned on the task, or has no sentence head for it.
    """
    wanted = task.model or task.name
    recorded = checkpoints.task_state(state).get(checkpoints.GLUE_TASK)
    if recorded not in (None, wanted):
        reads = f", whose models read {task.name}" if task.model else ""
        raise ValueError(
            f"{path} was fine-tuned on {recorded}, not on {wanted}{reads}; name another checkpoint"
        )
    model = load_model(state)
    heads = list(model.classification_heads)
    if len(heads) != 1:
        raise ValueError(
            f"{path} has {len(heads) or 'no'} sentence heads in place of one; finetune_glue.sh makes it"
        )
    outputs = model.get_parameter(f"classification_heads.{heads[0]}.out_proj.bias").numel()
    if outputs != task.outputs:
        raise ValueError(f"{path} has a sentence head of {outputs} outputs; {task.name} needs {task.outputs}")
    if (path.parent / DESCRIPTION_FILE).is_file():
        trained = PreparedTask.load(path.parent, wanted).task
        if not task.model and _meaning(trained) != _meaning(task):
            raise ValueError(
                f"{path.parent / DESCRIPTION_FILE} has other labels or inputs of {wanted} than the rows to "
                "predict; name those that the model was trained for"
            )
    if recorded is None:
        print(f"note: {path} does not say which task it was fine-tuned on; it is taken for {wanted}")
    options = state["cfg"].get("task")
    tokens: Any = options.get("tokens_per_sample") if isinstance(options, dict) else None
    longest = min(LONGEST, model.max_positions(), tokens if type(tokens) is int else LONGEST)
    if longest < task.least_tokens:
        raise ValueError(
            f"{path} was trained on rows of {longest} tokens; {task.name} needs {task.least_tokens} or more"
        )
    return Finetuned(model, heads[0], longest)


def _meaning(task: GlueTask) -> tuple[object, ...]:
    """What a model's outputs and inputs mean, by number and order."""
    return task.labels, task.label_scale, len(task.inputs)


@contextmanager
def prepared_folder(glue: Path, task: GlueTask, splits: Sequence[str], corpus: Path) -> Iterator[Path]:
    """The prepared folder of a task: GLUE_BIN/TASK, or one made of raw files for as long as it is needed.

    Args:
        glue: GLUE_BIN or, of raw files, GLUE_DIR.
        splits: those that matter; none for all test splits.
        corpus: folder of the vocabulary for raw files.

    Raises:
        FileNotFoundError: neither prepared nor raw files, or no vocabulary.
        ValueError: the task does not have the splits.
    """
    name = task.name
    if (glue / name / DESCRIPTION_FILE).is_file():
        yield glue / name
        return
    if not (glue / task.folder).is_dir():
        raise FileNotFoundError(
            f"no folder {glue / name}, and no {glue / task.folder} with raw files of {name}"
        )
    if not has_vocabulary(corpus):
        raise FileNotFoundError(
            f"{glue / name} was not made by scripts/prepare_glue.sh, and raw files need the {MODEL_FILE} and "
            f"{DICTIONARY_FILE} of the model, which {corpus} lacks"
        )
    chosen = {k: v for k, v in task.splits.items() if (k in splits if splits else not labelled(k))}
    if not chosen:
        raise ValueError(f"{name} has no {' or '.join(splits) or 'test'} rows; see --split")
    if not any(find_file(glue, task, split) for split in chosen):
        files = " or ".join(split.file for split in chosen.values())
        raise FileNotFoundError(
            f"{glue / task.folder} has no {files}, so there are no rows of {name} to predict"
        )
    with tempfile.TemporaryDirectory() as scratch:
        prepare(
            task, glue, corpus, Path(scratch), splits=chosen, max_unknown=1
        )  # every row gets a prediction
        yield Path(scratch, name)


def choose_splits(prepared: PreparedTask, asked: Sequence[str], glue: Path) -> list[str]:
    """The splits to predict: those asked for, or all test splits.

    Raises:
        ValueError: the prepared task does not have them.
    """
    chosen = list(dict.fromkeys(asked)) or [split for split in prepared.rows if not labelled(split)]
    missing = [split for split in chosen or ["test"] if split not in prepared.rows]
    if missing:
        there = ", ".join(prepared.rows) or "none at all"
        raise ValueError(f"{glue} has no {missing[0]} rows of {prepared.task.name}; there are {there}")
    return chosen


@torch.inference_mode()
def compute_outputs(reader: Finetuned, rows: SentencesDataset, batch_size: int) -> np.ndarray:
    """What the sentence head says of every row, (N, C), in their order.

    Batches are of rows of similar length, the longest first: one that does not fit into memory fails at once.

    Raises:
        ValueError: an output is no number.
    """
    model, device = reader.model, next(reader.model.parameters()).device
    order = np.argsort(-rows.sizes, kind="stable")
    parts = []
    for start in range(0, len(order), batch_size):
        batch = [rows[int(i)] for i in order[start : start + batch_size]]
        tokens = pad_sequence(batch, batch_first=True, padding_value=PAD).to(device)
        parts.append(model(tokens, classification_head_name=reader.head)[0].double().cpu().numpy())
    outputs = np.concatenate(parts)[np.argsort(order)]
    if not np.isfinite(outputs).all():
        row = int(np.argmin(np.isfinite(outputs).all(axis=1)))
        raise ValueError(f"the model's output for row {row} is no finite number; its training diverged")
    return outputs
