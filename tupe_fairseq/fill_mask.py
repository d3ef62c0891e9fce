"""Guesses for a mask, in the shell: python -m tupe_fairseq.fill_mask SAVE_DIR "text with <mask>"..."""

from __future__ import annotations

import argparse
import sys

import torch

from .model import TupeModel


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tupe_fairseq.fill_mask", description="The likeliest tokens in place of <mask>."
    )
    parser.add_argument("model", metavar="SAVE_DIR", help="folder of a training, or a checkpoint in it")
    parser.add_argument("texts", metavar="TEXT", nargs="+", help="with one <mask>")
    parser.add_argument("--topk", type=int, default=5, help="how many (default: %(default)s)")
    parser.add_argument("--data", help="folder of dict.txt and spm.model (default: that of the checkpoint)")
    parser.add_argument("--cpu", action="store_true", help="on the CPU, even where there is a GPU")
    args = parser.parse_args()
    try:
        tupe = TupeModel.from_pretrained(args.model, data_name_or_path=args.data)
        tupe.to("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
        for text, guesses in zip(args.texts, tupe.fill_mask(args.texts, args.topk)):
            print(text)
            for guess in guesses:
                print(f"  {guess.probability:6.1%}  {guess.token.strip():<16}{guess.text}")
    except (OSError, ValueError) as error:
        sys.exit(f"fill_mask: {error}")


if __name__ == "__main__":
    main()
