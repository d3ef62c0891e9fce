"""Speed and memory beside fairseq's RoBERTa, Hugging Face's BERT and the bare matrix products.

    bash scripts/benchmark.sh [flags]            python -m tupe_fairseq.benchmark [flags]

Writes OUT/benchmark.json, all that was measured, and OUT/benchmark.md, tables of it. A part that is measured
again replaces what the file has of it; the other parts stay, each with its commit and its machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from .benchmark_parts import CASES, PARTS, STEPS, usual
from .benchmark_report import markdown
from .benchmark_run import circumstances
from .benchmark_work import Work, parse_case
from .variants import VARIANTS
from .whole_file import whole_file


def measure(args: argparse.Namespace) -> str:
    """Measures the parts, writes both files after each, and returns the Markdown."""
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch sees no GPU here; --device cpu measures the same on the CPU")
    for case in args.cases:
        parse_case(case, usual(args))  # a wrong one is told now
    args.output.mkdir(parents=True, exist_ok=True)
    file = args.output / "benchmark.json"
    parts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    run = circumstances(args.threads or torch.get_num_threads(), gpu=args.device == "cuda")
    for name in PARTS if args.part == "all" else [args.part]:
        parts[name] = {**PARTS[name](args), "run": run}
        text = markdown(parts)
        for path, content in ((file, json.dumps(parts, indent=1) + "\n"), (file.with_suffix(".md"), text)):
            with whole_file(path) as part:
                part.write_text(content, encoding="utf-8")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmark",
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    # fmt: off
    add("--part", choices=[*PARTS, "all"], default="all")
    add("-o", "--output", metavar="OUT", type=Path, default=Path("runs/benchmark"))
    # steps
    add("--cases", nargs="+", metavar="CASE",
        help="of the part steps: BATCHxLENGTH, then perhaps :layers=N,dropout=P")
    add("--rounds", type=int, default=7, help="of the part steps")
    add("--steps", type=int, help="of each peer in a round")
    add("--variants", nargs="+", choices=list(VARIANTS), default=["tupe_r"],
        help="ours; the first is compared")
    add("--threads", type=int, help="of torch (default: its own choice)")
    add("--layers", type=int, default=Work.layers)
    add("--growth-layers", type=int, default=2, help="of the part growth")
    add("--text", nargs="+", type=Path, default=[], metavar="TEXT", dest="texts",
        help="of the parts train and corpus, plain UTF-8 (default: the documentation that comes with Python)")
    add("--train-rounds", type=int, default=3, help="of the parts train and corpus")
    add("--updates", type=int, default=4, help="of a training that count, after the first two")
    add("--megabytes", type=int, default=40, help="of text for the part corpus")
    add("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: in bfloat16")
    add("--quick", action="store_true", help="tiny models, to see whether all runs")
    # fmt: on
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; see the module's text."""
    args = _parser().parse_args(arguments)
    args.steps = args.steps or STEPS[args.device]
    args.cases = args.cases or (["2x16", "1x32:layers=2,dropout=0"] if args.quick else CASES[args.device])
    try:
        print(measure(args))
    except (ValueError, OSError) as error:
        sys.exit(f"benchmark: {error}")


if __name__ == "__main__":
    main()
