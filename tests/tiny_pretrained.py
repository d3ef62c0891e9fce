"""Folders as trainings leave them, made in a moment: a checkpoint, and its vocabulary beside it."""

from __future__ import annotations

from pathlib import Path

import tiny_glue
import tiny_model
import torch

from tupe_fairseq import checkpoints
from tupe_fairseq.config import TupeConfig
from tupe_fairseq.model import TupeModel
from tupe_fairseq.vocabulary import MASK, Vocabulary, dictionary_fingerprint


def make(folder: Path, outputs: int = 0, task: str | None = None, **options: object) -> TupeModel:
    """A vocabulary and `checkpoint_best.pt` in `folder`; with outputs, a sentence head. Returns the model.

    Weights are large and random, position terms too, so that nothing hides behind zeros.
    """
    vocabulary = Vocabulary(tiny_glue.make_corpus(folder))
    torch.manual_seed(1)
    options = {**vars(tiny_model.CONFIG), "max_positions": 40, **options}
    model = TupeModel(TupeConfig(**options), len(vocabulary) + 1, padding_idx=1)
    if outputs:
        model.register_classification_head("sentence_classification_head", outputs)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    there = {checkpoints.VOCABULARY: dictionary_fingerprint([*vocabulary.pieces, MASK])}
    if task:
        there[checkpoints.GLUE_TASK] = task
    run = {
        "task_state": there,
        "optimizer_history": [{"num_updates": 1234, "lr_scheduler_state": {}}],
        "extra_state": {"val_loss": 2.5, "best": 2.25},
    }
    torch.save(tiny_model.checkpoint(model) | run, folder / "checkpoint_best.pt")
    return model.eval()
