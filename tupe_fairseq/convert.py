"""Converts a checkpoint of the authors' code for this plugin.

    python -m tupe_fairseq.convert OFFICIAL.pt --dict DICT.txt -o OUT

    OUT/model.pt    for --finetune-from-model, --restore-file, fairseq-validate and scripts/finetune_glue.sh
    OUT/dict.txt    the dictionary of the same ids

Their dictionary has seven special symbols ahead of the lines of its file; the last three are lines of ours.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from . import checkpoints
from .official import TIED
from .official_weights import Official, read
from .vocabulary import DICTIONARY_FILE, MASK, SPECIALS, dictionary_fingerprint, write_dictionary
from .whole_file import new_folder

CHECKPOINT_FILE = "model.pt"
MORE_SPECIALS = ("<file>", "<email>", "<url>")  # behind fairseq's four in their Dictionary.__init__
# The task's defaults: fairseq-validate can change no option that a checkpoint lacks.
TASK = {
    "sample_break_mode": "complete",
    "mask_prob": 0.15,
    "leave_unmasked_prob": 0.1,
    "random_token_prob": 0.1,
    "freq_weighted_replacement": False,
    "mask_whole_words": False,
    "no_position_logs": False,
    "seed": 1,
}


def convert(source: Path, dictionary: Path, output: Path) -> Official:
    """Writes `output/model.pt` and `output/dict.txt`, both or none.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: a file is not what it should be, the two do not fit, or `output` exists.
        OSError: the files cannot be written.
    """
    with new_folder(output) as fresh:
        pieces, counts = read_dictionary(dictionary)
        model = read(source)
        if len(pieces) + 1 != model.vocabulary:
            raise ValueError(
                f"{source} has embeddings of {model.vocabulary:,} symbols but {dictionary} makes "
                f"{len(pieces) + 1:,}: 7 special ones, its {len(pieces) - 7:,} lines and {MASK}; give its own"
            )
        write_dictionary(fresh / DICTIONARY_FILE, pieces, counts)
        _save(checkpoint(model, str(output), [*pieces, MASK]), fresh / CHECKPOINT_FILE)
    return model


def read_dictionary(path: Path) -> tuple[list[str], list[int]]:
    """Symbols and counts by id, the seven special ones first, from a file of fairseq's Dictionary.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line is not a symbol and its count, or has a symbol that cannot stand there.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"no dictionary {path}; --dict names the dict.txt that the model was trained with"
        )
    data = path.read_bytes()
    try:
        text = data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {number} is not UTF-8") from None
    ids = dict.fromkeys((*SPECIALS, *MORE_SPECIALS), 0)  # with counts
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        piece, _, digits = line.rpartition(" ")
        if not (piece and re.fullmatch("[0-9]{1,18}", digits)) or "\r" in piece:
            raise ValueError(f"{path}, line {number} is {line!r:.60}, not a symbol and its count")
        if piece in (*SPECIALS, *MORE_SPECIALS, MASK):
            raise ValueError(f"{path}, line {number} has {piece}, which their code adds; give their own file")
        if piece in ids:
            raise ValueError(f"{path}, line {number} has {piece!r:.60} a second time")
        ids[piece] = int(digits)
    return list(ids), list(ids.values())


def checkpoint(model: Official, data: str, symbols: list[str]) -> dict[str, Any]:
    """What fairseq-train would have saved of the model before a first update, but for the optimizer's state.

    Args:
        model: the weights and their options.
        data: folder of the dictionary.
        symbols: of the dictionary by id, all of them.
    """
    # The options say all sizes themselves, so that the preset, which may be of another, decides nothing.
    options = {"_name": f"{model.options['variant']}_base", **model.options}
    task = {"_name": "tupe_masked_lm", "data": data, "tokens_per_sample": options["max_positions"], **TASK}
    history = {"criterion_name": "MaskedLmLoss", "optimizer_name": "FairseqAdam", "num_updates": 0}
    position = {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}
    return {
        "args": None,
        "cfg": {
            "_name": None,
            "common": {"seed": TASK["seed"]},
            "task": task,
            "criterion": {"_name": "masked_lm", "tpu": False},
            "model": options,
        },
        "model": model.weights,
        "criterion": None,
        "optimizer_history": [{**history, "lr_scheduler_state": {"best": None}}],
        "task_state": {checkpoints.VOCABULARY: dictionary_fingerprint(symbols)},
        "extra_state": {"train_iterator": position, "val_loss": None},
    }


def _save(state: dict[str, Any], path: Path) -> None:
    try:
        torch.save(state, path)
    except RuntimeError as error:  # in torch's words, a full disk for example
        raise OSError(f"cannot write {path}: {str(error).splitlines()[0]}") from None


def report(model: Official, source: Path, output: Path) -> str:
    """What was converted, what was left out, and what to do next."""
    o, numbers = model.options, sum(weight.numel() for weight in model.weights.values())
    heads = ", ".join(f"{name} ({outputs} outputs)" for name, outputs in model.heads.items())
    made = "" if model.stored == "float32" else f", made from {model.stored}"
    sizes = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    flags = " ".join(f"--{name.replace('_', '-')} {o[name]}" for name in (*sizes, "max_positions"))
    out = shlex.quote(str(output))
    return f"""\
{source}: {o["variant"]}
  {o["encoder_layers"]} layers of width {o["encoder_embed_dim"]}, inner width {o["encoder_ffn_embed_dim"]}, \
{o["encoder_attention_heads"]} heads, {o["max_positions"]} positions
  {numbers:,} parameters, float32{made}
  vocabulary of {model.vocabulary:,}: 7 special symbols, {model.vocabulary - 8:,} of the dictionary, {MASK}
  sentence heads: {heads or "none"}
  left out: {TIED} (the embeddings once more) and the state of the training
    ({", ".join(model.left_out)})
written: {output / CHECKPOINT_FILE}, {output / DICTIONARY_FILE}

Next, with ids in a folder DATA, made of text in the authors' BPE with
  fairseq-preprocess --only-source --srcdict {out}/{DICTIONARY_FILE} \
--trainpref TRAIN.txt --validpref VALID.txt --destdir DATA
try
  fairseq-validate DATA --user-dir tupe_fairseq --task tupe_masked_lm --batch-size 16 \
--path {out}/{CHECKPOINT_FILE}
To train from it, add to the flags of fairseq-train:
  --finetune-from-model {out}/{CHECKPOINT_FILE} --arch {o["variant"]}_base \
--tokens-per-sample {o["max_positions"]} {flags}"""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tupe_fairseq.convert",
        description="Converts a checkpoint of the authors' code (guolinke/TUPE) for this plugin.",
    )
    parser.add_argument("source", metavar="OFFICIAL.pt", type=Path, help="pre-trained or fine-tuned")
    parser.add_argument(
        "--dict", metavar="DICT.txt", type=Path, required=True, help="the dictionary of its data"
    )
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    try:
        print(report(convert(args.source, args.dict, args.output), args.source, args.output))
    except (OSError, ValueError) as error:
        sys.exit(f"convert: {error}")


if __name__ == "__main__":
    main()
