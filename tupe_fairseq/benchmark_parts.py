"""The parts of a benchmark: what each measures, and in which processes."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from .benchmark_corpus import compare, write_text
from .benchmark_peers import FLOOR, HUGGING_FACE, ROBERTA
from .benchmark_run import finish, start
from .benchmark_train import LOADED, QUICK_FLAGS, STOCK, Trainings, documentation, make_corpus
from .benchmark_work import Work, parse_case

FILES = "files"  # in OUT: texts, corpora and trainings
CASES = {
    "cpu": ["8x128", "4x512", "1x2048:layers=4", "4x512:dropout=0"],
    "cuda": ["32x512", "32x512:dropout=0"],
}
MEMORY_CASE = {"cpu": "4x512", "cuda": "32x512"}
LENGTHS = {"cpu": (128, 256, 512, 1024, 2048, 4096), "cuda": (512, 2048, 4096)}  # fewer, for it starts slowly
BATCH = {"cpu": 4, "cuda": 32}  # of the trainings
STEPS = {"cpu": 1, "cuda": 10}  # of a peer in a round
QUICK = Work(batch=1, length=16, layers=1, width=64, vocab=1000)  # shows that all runs, not how fast


def steps(args: Namespace) -> dict[str, Any]:
    """Time of a step, all peers in one process, round by round."""
    peers = [*args.variants, ROBERTA, HUGGING_FACE, FLOOR]
    measure = partial(_child, args, "time_steps", peers=peers, rounds=args.rounds, steps=args.steps)
    cases = {}
    for case in args.cases:
        _say(f"steps, {case}")
        work = asdict(parse_case(case, usual(args)))
        cases[case] = {**measure(work=work), "work": work}
    return {"cases": cases}


def memory(args: Namespace) -> dict[str, Any]:
    """Peak memory of steps, each peer in a process of its own."""
    work = asdict(parse_case("1x16" if args.quick else MEMORY_CASE[args.device], usual(args)))
    peers = {}
    for peer in (*args.variants, ROBERTA, HUGGING_FACE):
        _say(f"memory, {peer}")
        peers[peer] = _child(args, "peak_memory", peer=peer, work=work)
    return {"peers": peers, "work": work}


def growth(args: Namespace) -> dict[str, Any]:
    """Time and memory of a step as sequences get longer, each in a process of its own."""
    usually = replace(usual(args), layers=args.growth_layers)
    rows: dict[str, Any] = {}
    for length in (8, 16) if args.quick else LENGTHS[args.device]:
        for peer in (*args.variants, ROBERTA):
            _say(f"growth, {length} tokens, {peer}")
            work = asdict(parse_case(f"1x{length}", usually))
            rows.setdefault(str(length), {})[peer] = _child(args, "peak_memory", peer=peer, work=work)
    return {"lengths": rows, "work": asdict(usually)}


def train(args: Namespace) -> dict[str, Any]:
    """Updates of whole trainings, ours and stock in turn, and the share of making batches."""
    _say("train, the corpus")
    folder = args.output / FILES
    corpus = make_corpus(folder, args.texts or documentation(folder))
    batch = 2 if args.quick else BATCH[args.device]
    flags = ["--batch-size", str(batch), "--update-freq", "1"]
    flags += ["--cpu"] if args.device == "cpu" else ["--bf16"]
    flags += QUICK_FLAGS if args.quick else []
    both = Trainings(corpus, folder / "train", flags, args.threads)
    names = [*(f"{variant}_base" for variant in args.variants), STOCK]
    seconds: dict[str, list[list[float]]] = {name: [] for name in names}
    for number in range(args.train_rounds):
        for name in names if number % 2 == 0 else names[::-1]:
            _say(f"train, round {number + 1}, {name}")
            seconds[name].append(both.run(name, args.updates))
    loading = {}
    for name in names:
        _say(f"train, batches of {name}")
        loading[name] = _child(args, "load_batches", flags=both.words(name), batches=LOADED)
    return {"seconds": seconds, "loading": loading, "batch": batch, "device": args.device}


def corpus(args: Namespace) -> dict[str, Any]:
    """Corpus preparation beside the stock way."""
    _say("corpus, the text")
    folder = args.output / FILES / "preparation"
    folder.mkdir(parents=True, exist_ok=True)
    sources = args.texts or documentation(args.output / FILES)
    text = folder / "text.txt"
    write_text(sources, text, 1_000_000 * (1 if args.quick else args.megabytes))
    _say("corpus, both ways in turn")
    return compare(text, folder, os.cpu_count() or 1, 1 if args.quick else args.train_rounds)


PARTS: dict[str, Callable[[Namespace], dict[str, Any]]] = {
    "steps": steps,
    "memory": memory,
    "growth": growth,
    "train": train,
    "corpus": corpus,
}


def usual(args: Namespace) -> Work:
    """What a case works on where it does not say."""
    base = QUICK if args.quick else Work(batch=1, length=1, layers=args.layers)
    return replace(base, device=args.device)


def _child(args: Namespace, measure: str, **arguments: Any) -> dict[str, Any]:
    """What benchmark_steps prints.

    Raises:
        ChildProcessError: it failed.
    """
    threads = {"OMP_NUM_THREADS": str(args.threads)} if args.threads else {}
    module, wanted = f"{__package__}.benchmark_steps", json.dumps({"measure": measure, **arguments})
    (printed,) = finish(start(sys.executable, "-m", module, wanted, **threads))
    return json.loads(printed.splitlines()[-1])


def _say(progress: str) -> None:
    print(progress, flush=True)
