"""Raw text to a corpus for pre-training: `python -m tupe_fairseq.corpus -o CORPUS TEXT...`.

    text -> clean lines -> train and valid, by document -> SentencePiece -> rows of ids for fairseq
            (cleaning)     (splitting)                     (encoding)

The vocabulary lower-cases. Memory does not grow with the text, and the same text and flags give the same ids
with any number of workers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .cleaning import Tally, clean_texts, plain_bytes
from .corpus_report import notes_on_reading, nothing_left, summarize, table
from .encoding import encode, learn_vocabulary
from .pool import Workers, start_workers
from .progress import Stage
from .splitting import SPLITS, draw, move_document, move_lines, write_documents
from .vocabulary import DICTIONARY_FILE, MAX_UNKNOWN, MODEL_FILE, Vocabulary, write_dictionary

SUMMARY_FILE = "summary.json"
FILES = (MODEL_FILE, DICTIONARY_FILE, "bin", SUMMARY_FILE)  # of a corpus, in the order in which they appear


@dataclass(frozen=True)
class Settings:
    """What `prepare` does; the flags of the same names say more. Sources: the authors' scripts."""

    texts: Sequence[Path]
    output: Path
    vocab: int = 32_768  # process.sh: --nwordssrc
    vocab_from: Path | None = None
    workers: int = 1
    valid_every: int = 200  # split.py
    seed: int = 1
    shrink_vocab: bool = False
    max_unknown: float = MAX_UNKNOWN
    min_letters: int = 50  # filter_and_cleanup_lines.py: is_valid
    min_letter_share: float = 0.7  # filter_and_cleanup_lines.py: is_valid


def prepare(settings: Settings) -> dict[str, Any]:
    """Makes the corpus and returns its summary, which is also written to `summary.json`.

    Until all of it is made, nothing new stands under the final names; then it replaces an older corpus there.
    Raises ValueError and OSError, in words for the user.
    """
    started = time.monotonic()
    for path in settings.texts:  # a wrong name is told now, not after hours
        if not path.is_file():
            raise ValueError(f"{path} is no file; TEXT names texts, plain or gzip")
        path.open("rb").close()
    if settings.vocab_from:
        Vocabulary(settings.vocab_from)
        if settings.shrink_vocab:
            raise ValueError(
                "--shrink-vocab is for a vocabulary that is learnt; leave it out with --vocab-from"
            )
    output = settings.output.resolve()
    if output.is_file():
        raise ValueError(f"{output} is a file; -o names a folder")
    _check_replaceable(output, settings.texts)
    home = output if output.is_dir() else output.parent  # work in the file system that takes the result
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=home) as folder:
        work = Path(folder)
        fresh = work / "corpus"
        summary = _make(settings, work, fresh)
        summary["seconds"] = time.monotonic() - started
        summary["mb_per_second"] = summary["bytes"] / 1e6 / summary["seconds"]
        (fresh / SUMMARY_FILE).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        _publish(fresh, output, work / "replaced")
    return summary


def _check_replaceable(output: Path, texts: Sequence[Path]) -> None:
    """Raises ValueError where writing a corpus would replace files that are not of a corpus."""
    old = [name for name in FILES if (output / name).exists()]
    names = {f"{split}.{kind}" for split in SPLITS for kind in ("bin", "idx")} | {DICTIONARY_FILE}
    foreign = (output / "bin").is_dir() and {path.name for path in (output / "bin").iterdir()} - names
    if old and (foreign or len(old) < len(FILES)):
        raise ValueError(f"{output} holds {', '.join(old)}, but no corpus; name another folder with -o")
    for text in texts:
        if output / "bin" in text.resolve().parents:
            raise ValueError(f"{text} lies in the corpus that would be replaced; move it, or name another -o")


def _make(settings: Settings, work: Path, fresh: Path) -> dict[str, Any]:
    """Makes the corpus in `fresh`, what lies between in `work`; returns the summary but for the time."""
    (fresh / "bin").mkdir(parents=True)
    tally = Tally()
    with start_workers(settings.workers) as workers:
        with Stage("cleaning", plain_bytes(settings.texts)) as cleaning:
            documents, notes = _clean(settings, work, tally, workers, cleaning)
        with Stage("vocabulary") as vocabulary:
            notes += _find_vocabulary(settings, work / "train.txt", fresh, vocabulary)
        texts = [work / f"{split}.txt" for split in SPLITS]
        with Stage("encoding", plain_bytes(texts)) as encoding:
            encoded = [
                encode(text, fresh, fresh / "bin" / split, workers, encoding)
                for split, text in zip(SPLITS, texts)
            ]
    if not settings.vocab_from:  # else all corpora of a vocabulary have the same dictionary, byte for byte
        write_dictionary(fresh / DICTIONARY_FILE, Vocabulary(fresh).pieces, encoded[0].counts.tolist())
    shutil.copyfile(fresh / DICTIONARY_FILE, fresh / "bin" / DICTIONARY_FILE)
    summary = summarize(settings.texts, tally, documents, encoded, notes, settings.max_unknown)
    return summary | {"stages": {stage.name: stage.figures() for stage in (cleaning, vocabulary, encoding)}}


def _find_vocabulary(settings: Settings, text: Path, folder: Path, stage: Stage) -> list[str]:
    """Learns the vocabulary, or copies another corpus's, to the folder; returns what is worth telling."""
    if settings.vocab_from is None:
        print("learning the vocabulary", flush=True)
        return learn_vocabulary(text, settings.vocab, settings.shrink_vocab, folder, stage)
    for name in (MODEL_FILE, DICTIONARY_FILE):
        shutil.copyfile(settings.vocab_from / name, folder / name)
    return [f"the vocabulary is that of {settings.vocab_from}"]


def _clean(
    settings: Settings, work: Path, tally: Tally, workers: Workers, stage: Stage
) -> tuple[list[int], list[str]]:
    """Writes train.txt and valid.txt; returns how many documents each has, and notes."""
    limits = settings.min_letters, settings.min_letter_share
    lines = clean_texts(settings.texts, tally, *limits, workers, stage)
    validates = partial(draw, seed=settings.seed, valid_every=settings.valid_every)
    documents = write_documents(lines, work, validates)
    if not tally.kept:
        raise ValueError(nothing_left(tally))
    notes = notes_on_reading(tally)
    if documents == [1, 0]:
        moved = move_lines(work, tally.kept, settings.valid_every)
        notes.append(
            "the text is one document (no blank line); "
            f"of its {tally.kept:,} lines the last {moved:,} validate"
        )
    elif documents[1] == 0:
        documents = move_document(work, settings.valid_every)
    return documents, notes


def _publish(fresh: Path, output: Path, replaced: Path) -> None:
    """Moves the corpus to its name: at once, or over an older one piece by piece, the summary out first and
    in last; an error undoes all."""
    if not output.exists():
        fresh.rename(output)
        return
    old = [name for name in reversed(FILES) if (output / name).exists()]
    if old:
        print(f"replacing the corpus in {output}", flush=True)
    replaced.mkdir()
    moves = [(output / name, replaced / name) for name in old]
    moves += [(fresh / name, output / name) for name in FILES]
    with ExitStack() as undo:
        for source, target in moves:
            source.rename(target)
            undo.callback(target.rename, source)
        undo.pop_all()


def _number(kind: Callable[[str], float], least: float, most: float = math.inf) -> Callable[[str], float]:
    """A type for argparse: a number within bounds."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not within {least} and {most}")
        return value

    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tupe_fairseq.corpus",
        description="Cleans raw text, learns a lower-cased SentencePiece vocabulary on it, and writes the "
        "text as ids for fairseq-train: spm.model, dict.txt, bin/{train,valid}.{bin,idx}, summary.json.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    # fmt: off
    add("texts", metavar="TEXT", nargs="+", type=Path,
        help="UTF-8 text, plain or gzip: a paragraph or sentence a line, a blank line between documents")
    add("-o", "--output", metavar="CORPUS", type=Path, required=True, default=argparse.SUPPRESS,
        help="folder to write; a corpus in it is replaced once the new one is whole")
    vocab = parser.add_mutually_exclusive_group()
    vocab.add_argument("-v", "--vocab", type=_number(int, 5), default=Settings.vocab,
        help="pieces to learn, the four specials included, <mask> not")
    vocab.add_argument("--vocab-from", metavar="CORPUS", type=Path, default=Settings.vocab_from,
        help="take the vocabulary of another corpus: for further shards, or more text for a trained model")
    add("--shrink-vocab", action="store_true",
        help="where the text gives fewer pieces than -v, take all it gives instead of failing")
    add("--max-unknown", type=_number(float, 0, 1), default=Settings.max_unknown,
        help="a text with a larger share of unknown pieces is refused")
    add("--workers", type=_number(int, 1), default=os.cpu_count() or 1,
        help="processes that clean and encode; any number gives the same corpus")
    add("--valid-every", type=_number(int, 2), default=Settings.valid_every,
        help="one document in about so many, at least one, validates; of a lone document, its last lines")
    add("--seed", type=int, default=Settings.seed,
        help="draws the documents that validate")
    add("--min-letters", type=_number(int, 1), default=Settings.min_letters,
        help="a line with fewer letters, of any script, is dropped")
    add("--min-letter-share", type=_number(float, 0, 1), default=Settings.min_letter_share,
        help="a line with a smaller share of letters in its characters is dropped")
    # fmt: on
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    settings = Settings(**vars(_parser().parse_args(arguments)))
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: the work folder goes
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, signal.default_int_handler)
    try:
        print(table(prepare(settings)))
        return 0
    except KeyboardInterrupt:
        error: object = "interrupted; nothing was written"
    except (ValueError, OSError) as problem:
        error = problem
    print(f"corpus: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
