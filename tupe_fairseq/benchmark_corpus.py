"""Corpus preparation beside the stock way: SentencePiece to text, then fairseq-preprocess.

Ours is the whole command, raw text to ids, less the seconds in which it learns the vocabulary. The stock way
starts from the text that ours has cleaned, so it does less: a process a worker encodes its part of the lines
with the same SentencePiece model, and fairseq-preprocess makes ids of the pieces. Starting the interpreters
counts on both sides. The files of ids must be the same, byte for byte.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import corpus
from .benchmark_run import finish, start
from .splitting import SPLITS
from .vocabulary import MODEL_FILE

# As fairseq's scripts/spm_encode.py does it: a line at a time, pieces joined by spaces.
ENCODE = """
import sys, sentencepiece
processor = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1])
with open(sys.argv[2], encoding="utf-8", newline="\\n") as lines:
    with open(sys.argv[3], "w", encoding="utf-8", newline="\\n") as pieces:
        for line in lines:
            print(" ".join(processor.encode(line.rstrip("\\n"), out_type=str)), file=pieces)
"""
NEW_WORD = 12  # in a copy of a text, one word in so many is another


def write_text(sources: Sequence[Path], target: Path, size: int, seed: int = 1) -> None:
    """Writes ``size`` bytes or more: the texts, then copies of them with some words exchanged.

    So few lines repeat, which preparation would drop.
    """
    random_numbers = random.Random(seed)
    lines = [line for source in sources for line in source.read_text(encoding="utf-8").split("\n")]
    words = [word for line in lines for word in line.split()]
    written = copy = 0
    with target.open("w", encoding="utf-8") as file:
        while written < size:
            for line in lines:
                if copy and line:
                    new = line.split()
                    for i in range(random_numbers.randrange(NEW_WORD), len(new), NEW_WORD):
                        new[i] = random_numbers.choice(words)
                    line = " ".join(new)
                written += file.write(line + "\n")
            copy += 1


def compare(text: Path, folder: Path, workers: int, rounds: int) -> dict[str, Any]:
    """Prepares the text both ways, in turn.

    Returns:
        {"seconds": {"ours": one a round, "stock": ...}, "bytes": of the text}

    Raises:
        ValueError: the two have other ids.
        ChildProcessError: a command failed.
    """
    seconds: dict[str, list[float]] = {"ours": [], "stock": []}
    for _ in range(rounds):
        seconds["ours"].append(_ours(text, folder / "ours", workers))
        seconds["stock"].append(_stock(folder / "ours", folder / "stock", workers))
        for name in (f"{split}.{kind}" for split in SPLITS for kind in ("bin", "idx")):
            own, other = (folder / side / "bin" / name for side in ("ours/corpus", "stock"))
            if own.read_bytes() != other.read_bytes():
                raise ValueError(f"{own} and {other} differ, so the times are not of the same work")
    return {"seconds": seconds, "bytes": text.stat().st_size, "workers": workers}


def _ours(text: Path, folder: Path, workers: int) -> float:
    """Leaves the corpus and its clean text, train.txt and valid.txt, in the folder."""
    _fresh(folder)
    flags = ["-o", str(folder / "corpus"), "--workers", str(workers), "--shrink-vocab", str(text)]
    started = time.perf_counter()
    finish(start(sys.executable, "-m", f"{__package__}.benchmark_corpus", str(folder), *flags))
    return time.perf_counter() - started - float((folder / "learning").read_text())


def _stock(ours: Path, folder: Path, workers: int) -> float:
    _fresh(folder)
    model, dictionary = ours / "corpus" / MODEL_FILE, ours / "corpus/dict.txt"
    parts = {split: _cut(ours / f"{split}.txt", folder, workers) for split in SPLITS}
    started = time.perf_counter()
    for split, names in parts.items():
        finish(*(start(sys.executable, "-c", ENCODE, str(model), str(n), f"{n}.pieces") for n in names))
        with (folder / f"{split}.pieces").open("wb") as whole:
            for name in names:
                with Path(f"{name}.pieces").open("rb") as part:
                    shutil.copyfileobj(part, whole)
    prefixes = [f"--{split}pref={folder / split}.pieces" for split in SPLITS]
    command = [sys.executable, "-m", "fairseq_cli.preprocess", "--only-source", f"--srcdict={dictionary}"]
    finish(start(*command, *prefixes, f"--destdir={folder / 'bin'}", f"--workers={workers}"))
    return time.perf_counter() - started


def _fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _cut(text: Path, folder: Path, parts: int) -> list[Path]:
    """A text in files of whole lines, about as long as each other."""
    names = [folder / f"{text.stem}.{i}" for i in range(parts)]
    size = text.stat().st_size
    with text.open("rb") as whole:
        for i, name in enumerate(names, 1):
            with name.open("wb") as part:
                part.write(whole.read(max(0, size * i // parts - whole.tell())))
                part.write(whole.readline())
    return names


def main(keep: Path, arguments: Sequence[str]) -> int:
    """The command of corpus preparation, whatever its version; leaves its clean text and its seconds of
    learning in a folder."""
    learn = corpus.learn_vocabulary

    def timed(text: Path, *rest: Any) -> Any:
        started = time.perf_counter()
        notes = learn(text, *rest)
        (keep / "learning").write_text(str(time.perf_counter() - started))
        for split in SPLITS:
            os.link(text.with_name(f"{split}.txt"), keep / f"{split}.txt")
        return notes

    vars(corpus)["learn_vocabulary"] = timed
    return corpus.main(arguments)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
