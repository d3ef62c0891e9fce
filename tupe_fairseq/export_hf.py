"""Writes a model for Hugging Face's transformers, which loads it without this plugin and without fairseq.

    python -m tupe_fairseq.export_hf CHECKPOINT OUT

    OUT/model.safetensors, config.json           the weights and the options
    OUT/tokenizer.json, tokenizer_config.json    the vocabulary, and spm.model
    OUT/modeling_tupe.py, tokenization_tupe.py, and what they import: this package's own files
    OUT/README.md                                the model card

    AutoModelForMaskedLM.from_pretrained(OUT, trust_remote_code=True)

A model with one sentence head is written for AutoModelForSequenceClassification.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import Any

import torch

try:
    from transformers.utils import logging
except ModuleNotFoundError:
    if __name__ == "__main__":
        sys.exit("export_hf: transformers is missing; pip install -r requirements-hf.txt")
    raise

from . import checkpoints, modeling_tupe
from .fast_tokenizer import fast_tokenizer
from .glue import DESCRIPTION_FILE, KNOWN, find_task
from .glue_task import GlueTask
from .hub import TupeHubInterface
from .model import TupeModel
from .save_folder import find_checkpoint
from .tokenization_tupe import TupeTokenizerFast
from .vocabulary import BOS, EOS, MASK, MODEL_FILE, PAD, SPECIALS, UNK
from .whole_file import new_folder

AUTO_CLASSES: dict[str, Any] = {
    "AutoConfig": modeling_tupe.TupeConfig,
    "AutoModel": modeling_tupe.TupeModel,
    "AutoModelForMaskedLM": modeling_tupe.TupeForMaskedLM,
    "AutoModelForSequenceClassification": modeling_tupe.TupeForSequenceClassification,
}
AUTO_MAP = {auto: f"modeling_tupe.{kind.__name__}" for auto, kind in AUTO_CLASSES.items()}
for _auto, _class in AUTO_CLASSES.items():  # so that saving writes their code, too
    _class.register_for_auto_class(_auto)
TupeTokenizerFast.register_for_auto_class("AutoTokenizer")
LARGEST_DIFFERENCE = 1e-5  # of a logit, there and here


def export(source: Path, output: Path, data: Path | None = None) -> str:
    """Writes the folder, whole or not at all; returns what there is to say.

    Args:
        source: a checkpoint, or SAVE_DIR of a training.
        output: the folder to make.
        data: folder of `dict.txt` and `spm.model`, by default that of the checkpoint.

    Raises:
        FileNotFoundError: there is no checkpoint, or no vocabulary.
        ValueError: the checkpoint is none of this plugin, has several sentence heads, or `output` exists.
        OSError: the files cannot be written.
    """
    source = find_checkpoint(source)
    with new_folder(output) as fresh:
        tupe = TupeModel.from_pretrained(source, data_name_or_path=data)
        state = checkpoints.load(source)
        task = _finetuned_on(state, source.parent)
        model = _transformers_model(tupe.model, task)
        difference = _difference(tupe, model)
        if not difference <= LARGEST_DIFFERENCE:
            raise ValueError(f"the logits of the two models differ by {difference:.1e}; nothing was written")
        model.config.auto_map = AUTO_MAP
        logging.disable_progress_bar()
        model.save_pretrained(fresh)
        _tokenizer(data or source.parent, tupe.model.max_positions()).save_pretrained(fresh)
        (fresh / "README.md").write_text(_card(model, state, task), encoding="utf-8")
    kind = type(model).__name__
    return (
        f"written: {output}, a {kind} of {model.num_parameters():,} parameters; "
        f"its logits differ from the checkpoint's by at most {difference:.1e}"
    )


def _finetuned_on(state: dict[str, Any], folder: Path) -> GlueTask | None:
    """The task of a checkpoint in that folder, if it is of one and there is something to know of it.

    Raises:
        ValueError: the folder's task.json is damaged.
    """
    name = checkpoints.task_state(state).get(checkpoints.GLUE_TASK)
    if isinstance(name, str) and (name in KNOWN or (folder / DESCRIPTION_FILE).is_file()):
        return find_task(name, folder)
    return None


def _transformers_model(ours: TupeModel, task: GlueTask | None) -> modeling_tupe.TupePreTrainedModel:
    """The same model, of the class that its heads make it."""
    heads = list(ours.classification_heads)
    if len(heads) > 1:
        raise ValueError(f"the model has the sentence heads {', '.join(heads)}; one can be exported")
    cfg = ours.cfg
    options: dict[str, Any] = {
        "variant": str(cfg.variant),
        "vocab_size": ours.encoder.cfg.vocab_size,
        "hidden_size": cfg.encoder_embed_dim,
        "num_hidden_layers": cfg.encoder_layers,
        "num_attention_heads": cfg.encoder_attention_heads,
        "intermediate_size": cfg.encoder_ffn_embed_dim,
        "max_position_embeddings": cfg.max_positions,
        "rel_pos_bins": cfg.rel_pos_bins,
        "max_rel_pos": cfg.max_rel_pos,
        "hidden_dropout_prob": cfg.dropout,
        "attention_probs_dropout_prob": cfg.attention_dropout,
        "activation_dropout": cfg.activation_dropout,
        "classifier_dropout": cfg.pooler_dropout,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }
    weights = ours.state_dict()
    prefix, theirs, kind = "lm_head.", "lm_head.", modeling_tupe.TupeForMaskedLM
    if heads:
        prefix, theirs = f"classification_heads.{heads[0]}.", "classifier."
        kind = modeling_tupe.TupeForSequenceClassification
        outputs = len(weights[f"{prefix}out_proj.bias"])
        labels = task.labels if task else ()
        names = labels if len(labels) == outputs else [f"LABEL_{i}" for i in range(outputs)]
        options["id2label"] = dict(enumerate(names))
        options["label2id"] = {name: i for i, name in enumerate(names)}
    model = kind(modeling_tupe.TupeConfig(**options))
    model.load_state_dict(
        {f"tupe.{name}": weight for name, weight in weights.items() if name.startswith("encoder.")}
        | {
            theirs + name.removeprefix(prefix): weight
            for name, weight in weights.items()
            if name.startswith(prefix)
        }
    )
    return model.eval()


@torch.inference_mode()
def _difference(tupe: TupeHubInterface, model: modeling_tupe.TupePreTrainedModel) -> float:
    """Largest difference of a logit, of rows of random tokens of two lengths."""
    generator = torch.Generator().manual_seed(1)
    length = min(64, tupe.model.max_positions())
    tokens = torch.randint(len(SPECIALS), len(tupe.vocabulary), (2, length), generator=generator)
    tokens[:, 0] = BOS
    tokens[1, length // 2 :] = PAD
    heads = list(tupe.model.classification_heads)
    ours = tupe.model(tokens, classification_head_name=heads[0] if heads else None)[0]
    theirs = model(tokens, attention_mask=tokens != PAD).logits
    return (ours - theirs).abs().max().item()


def _tokenizer(vocabulary: Path, longest: int) -> TupeTokenizerFast:
    """Our vocabulary under the names of transformers."""
    return TupeTokenizerFast(
        spm_file=str(vocabulary / MODEL_FILE),
        tokenizer_object=fast_tokenizer(vocabulary),
        bos_token=SPECIALS[BOS],
        pad_token=SPECIALS[PAD],
        eos_token=SPECIALS[EOS],
        unk_token=SPECIALS[UNK],
        cls_token=SPECIALS[BOS],
        sep_token=SPECIALS[EOS],
        mask_token=MASK,
        model_max_length=longest,
        model_input_names=["input_ids", "attention_mask"],
    )


def _card(model: modeling_tupe.TupePreTrainedModel, state: dict[str, Any], task: GlueTask | None) -> str:
    """The model card, with the figures of the run as far as the checkpoint holds them."""
    config = model.config
    if isinstance(model, modeling_tupe.TupeForMaskedLM):
        made, tag, auto = "pre-trained by masked language modelling", "fill-mask", "AutoModelForMaskedLM"
        example = 'pipeline("fill-mask", model=FOLDER, trust_remote_code=True)("a text with <mask>")'
    else:
        made = f"fine-tuned on {task.name if task else 'a sentence task'}"
        tag, auto = "text-classification", "AutoModelForSequenceClassification"
        example = 'pipeline("text-classification", model=FOLDER, trust_remote_code=True)("a sentence")'
    rows = "\n".join(f"| {name} | {value} |" for name, value in _figures(model, state))
    return f"""\
---
library_name: transformers
pipeline_tag: {tag}
tags: [tupe, {config.variant}]
---

# {config.variant}, {made}

A model with untied positional encoding ([Ke, He and Liu, 2021](https://arxiv.org/abs/2006.15595)), trained
with tupe_fairseq. Text is lower-cased by its vocabulary. With `FOLDER` the folder of this file:

```python
from transformers import AutoTokenizer, {auto}, pipeline

tokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)
model = {auto}.from_pretrained(FOLDER, trust_remote_code=True)
{example}
```

It needs `transformers` and `sentencepiece`. `trust_remote_code` lets the Python files beside this one run.

| | |
| --- | --- |
{rows}
"""


def _figures(model: modeling_tupe.TupePreTrainedModel, state: dict[str, Any]) -> list[tuple[str, str]]:
    config = model.config
    figures = [
        ("parameters", f"{model.num_parameters():,}"),
        ("layers", f"{config.num_hidden_layers}"),
        ("width", f"{config.hidden_size}, inner {config.intermediate_size}"),
        ("heads", f"{config.num_attention_heads}"),
        ("vocabulary", f"{config.vocab_size:,}"),
        ("positions", f"{config.max_position_embeddings}"),
    ]
    history = state.get("optimizer_history")
    updates = _number(history[-1] if isinstance(history, list) and history else None, "num_updates")
    if updates == updates:
        figures.append(("updates", f"{updates:,.0f}"))
    extra = state.get("extra_state")
    cfg = state.get("cfg", {})
    metric = _entry(cfg, "checkpoint", "best_checkpoint_metric")
    for name, key in (("at this checkpoint", "val_loss"), ("best of the run", "best")):
        value = _number(extra, key)
        if value == value:
            figures.append((f"validation {metric or 'loss'}, {name}", f"{value:.4f}"))
    for section, key in (("optimization", "lr"), ("dataset", "batch_size"), ("optimization", "update_freq")):
        value = _entry(cfg, section, key)
        if value is not None:
            shown = value[0] if isinstance(value, list) and len(value) == 1 else value
            figures.append((f"--{key.replace('_', '-')}", f"{shown}"))
    return figures


def _entry(cfg: Any, section: str, key: str) -> Any:
    """An option of fairseq-train that stands in a checkpoint; None if it does not, or is no plain value."""
    options = cfg.get(section) if isinstance(cfg, dict) else None
    value = options.get(key) if isinstance(options, dict) else None
    values = value if isinstance(value, list) else [value]
    plain = all(isinstance(v, (int, float)) or (isinstance(v, str) and v.isidentifier()) for v in values)
    return value if plain else None


def _number(entries: Any, key: str) -> float:
    """An entry of a mapping if it is a number, else NaN."""
    value = entries.get(key) if isinstance(entries, dict) else None
    return float(value) if isinstance(value, (int, float)) else math.nan


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tupe_fairseq.export_hf", description="Writes a model for Hugging Face's transformers."
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", type=Path, help="a file, or SAVE_DIR of a training"
    )
    parser.add_argument("output", metavar="OUT", type=Path, help="folder to make")
    parser.add_argument("--data", type=Path, help="folder of the vocabulary")
    args = parser.parse_args()
    try:
        print(export(args.checkpoint, args.output, args.data))
    except (OSError, ValueError) as error:
        sys.exit(f"export_hf: {error}")


if __name__ == "__main__":
    main()
