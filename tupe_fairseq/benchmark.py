"""Speed and memory beside fairseq's RoBERTa, Hugging Face's BERT and the bare matrix products.

    bash scripts/benchmark.sh [flags]            python -m tupe_fairseq.benchmark [flags]

Writes OUT/benchmark.json, all that was measured, and OUT/benchmark.md, tables of it. A part that is measured
again replaces what the file has of it; the other parts stay, each with its commit and its machine.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from .benchmark_peers import FLOOR, HUGGING_FACE, ROBERTA
from .benchmark_report import markdown
from .benchmark_run import circumstances
from .benchmark_work import Work
from .variants import VARIANTS
from .whole_file import whole_file

# BATCHxLENGTH, and what is not as usual
CASES = {
    "cpu": ["8x128", "4x512", "1x2048:layers=4", "4x512:dropout=0"],
    "cuda": ["32x512", "32x512:dropout=0"],
}
MEMORY_CASE = {"cpu": "4x512", "cuda": "32x512"}
LENGTHS = (128, 256, 512, 1024, 2048, 4096)  # of the part growth
STEPS = {"cpu": 1, "cuda": 10}  # of a peer in a round
QUICK: dict[str, Any] = {"layers": 1, "width": 64, "vocab": 1000}  # shows that all runs, not how fast


def steps(args: argparse.Namespace) -> dict[str, Any]:
    """Part: time of a step, all peers in one process, round by round."""
    peers = [*args.variants, ROBERTA, HUGGING_FACE, FLOOR]
    cases = {}
    for case in args.cases:
        _say(f"steps, {case}")
        work = _work(case, args)
        cases[case] = _child(
            args, measure="time_steps", peers=peers, work=asdict(work), rounds=args.rounds, steps=args.steps
        )
        cases[case]["work"] = asdict(work)
    return {"cases": cases}


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """Part: peak memory of steps, each peer in a process of its own."""
    work = _work("1x16" if args.quick else MEMORY_CASE[args.device], args)
    peers = {}
    for peer in (*args.variants, ROBERTA, HUGGING_FACE):
        _say(f"memory, {peer}")
        peers[peer] = _child(args, measure="peak_memory", peer=peer, work=asdict(work))
    return {"peers": peers, "work": asdict(work)}


def growth(args: argparse.Namespace) -> dict[str, Any]:
    """Part: time and memory of a step as sequences get longer, each in a process of its own."""
    lengths = (8, 16) if args.quick else LENGTHS
    rows: dict[str, Any] = {}
    for length in lengths:
        work = replace(_work(f"1x{length}", args), layers=args.growth_layers)
        for peer in (*args.variants, ROBERTA):
            _say(f"growth, {length} tokens, {peer}")
            result = _child(args, measure="peak_memory", peer=peer, work=asdict(work))
            rows.setdefault(str(length), {})[peer] = result
    return {"lengths": rows, "work": asdict(work)}


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "steps": steps,
    "memory": memory,
    "growth": growth,
}


def _work(case: str, args: argparse.Namespace) -> Work:
    """What a case such as "1x2048:layers=4,dropout=0" asks for.

    Raises:
        ValueError: it is none.
    """
    parsed = re.fullmatch(r"(\d+)x(\d+)(?::((?:layers=\d+|dropout=0?\.?\d+)(?:,(?!$)|$))+)?", case)
    if not parsed:
        raise ValueError(f"{case} is no case: BATCHxLENGTH, then perhaps :layers=N,dropout=P")
    own = dict(word.split("=") for word in case.partition(":")[2].split(",") if word)
    return Work(
        batch=int(parsed[1]),
        length=int(parsed[2]),
        device=args.device,
        **{
            **(QUICK if args.quick else {"layers": args.layers}),
            **{name: (int if name == "layers" else float)(value) for name, value in own.items()},
        },
    )


def _child(args: argparse.Namespace, **wanted: Any) -> dict[str, Any]:
    """What benchmark_steps prints.

    Raises:
        ChildProcessError: it failed.
    """
    command = [
        sys.executable,
        "-m",
        f"{__package__}.benchmark_steps",
        json.dumps({**wanted, "threads": args.threads}),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip() or "killed, perhaps for want of memory").splitlines()[-1]
        raise ChildProcessError(f"{wanted['measure']} ended with status {result.returncode}: {last}")
    return json.loads(result.stdout.splitlines()[-1])


def _say(progress: str) -> None:
    print(progress, flush=True)


def run(args: argparse.Namespace) -> str:
    """Measures the parts, writes both files after each, and returns the Markdown."""
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch sees no GPU here; --device cpu measures the same on the CPU")
    for case in args.cases:
        _work(case, args)  # a wrong one is told now
    args.output.mkdir(parents=True, exist_ok=True)
    file = args.output / "benchmark.json"
    parts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in PARTS if args.part == "all" else [args.part]:
        parts[name] = {**PARTS[name](args), "run": circumstances()}
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
    add("--cases", nargs="+", metavar="CASE",
        help="of the part steps: BATCHxLENGTH, then perhaps :layers=N,dropout=P")
    add("--rounds", type=int, default=7, help="of the part steps")
    add("--steps", type=int, help="of each peer in a round")
    add("--variants", nargs="+", choices=list(VARIANTS), default=["tupe_r"],
        help="ours; the first is compared")
    add("--threads", type=int, help="of torch (default: its own choice)")
    add("--layers", type=int, default=Work.layers)
    add("--growth-layers", type=int, default=2, help="of the part growth")
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
        print(run(args))
    except (ValueError, OSError) as error:
        sys.exit(f"benchmark: {error}")


if __name__ == "__main__":
    main()
