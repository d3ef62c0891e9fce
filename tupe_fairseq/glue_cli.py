"""What `python -m tupe_fairseq.glue` can do; each command is imported when it is named."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from .glue_report import report

# Commands with their module, which is imported when the command is named: `predict` needs fairseq.
LATER = {
    "predict": (".glue_predict", "predictions of a fine-tuned model"),
    "submission": (".glue_submission", "the zip file for GLUE's leaderboard"),
}


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="python -m tupe_fairseq.glue", description="GLUE after fine-tuning."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_report(commands.add_parser("report", help="the results of scripts/sweep_glue.sh as a table"))
    for name, (place, what) in LATER.items():
        command = commands.add_parser(name, help=what)
        if words[:1] == [name]:
            module = import_module(place, __package__)
            getattr(module, f"add_{name}_arguments")(command)
            command.set_defaults(run=getattr(module, f"run_{name}"))
    args = parser.parse_args(words)
    try:
        args.run(args)
    except (OSError, ValueError) as error:
        sys.exit(f"glue: {error}")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, metavar="RUNS", help="the folder of the sweep")
    parser.add_argument("--csv", type=Path, metavar="OUT.csv", help="also write the numbers there")
    parser.set_defaults(run=lambda args: print(report(args.runs, args.csv)))
