"""A fine-tuning task out of plain text: is a sentence as it was written, or have words changed places?

    python -m tupe_fairseq.word_order -o OUT [TEXT...]

Only a model that knows about positions can tell. The quickstart uses it, because GLUE cannot be shipped. It
writes

    OUT/pretrain.txt               most documents, to pre-train on
    OUT/glue/WordOrder/train.tsv   sentences of the others, in the format of CoLA: label 1 for a natural
    OUT/glue/WordOrder/dev.tsv     sentence, 0 for one with moved words; no sentence is in both files

Without TEXT it takes the English text that every CPython carries: the language reference of pydoc and the
docstrings of the standard library. (The reference alone, 65,000 words, leaves too few sentences to test on.)
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from .cleaning import Tally, read_lines

HELD_OUT = 4  # one document in so many is kept from pre-training
WORDS = range(6, 17)  # of a sentence
MOVED = 3  # words that change places, as one cycle
TRAIN_ROWS = 8000  # about; the fewer sentences, the more versions of each, with other words moved
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")


def python_documents() -> Iterator[list[str]]:
    """The documentation that comes with Python: a document a section or module, a paragraph a line."""
    from pydoc_data import topics

    for _, text in sorted(topics.topics.items()):
        for section in re.split(r"\n(?=[^\n]+\n[*=\-^~]{4,}\n)", text):  # before each underlined heading
            yield paragraphs(section)
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if not {"test", "tests", "site-packages", "dist-packages", "pydoc_data"} & set(
            path.relative_to(library).parts
        ):
            yield paragraphs("\n\n".join(docstrings(path)))


def docstrings(path: Path) -> Iterator[str]:
    """The docstrings of a Python file; none of one that this Python cannot parse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old-fashioned literals
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:
            return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def paragraphs(text: str) -> list[str]:
    """The paragraphs of wrapped text, each as one line."""
    lines = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return [line for line in lines if line]


def read_documents(paths: Iterable[Path], tally: Tally) -> Iterator[list[str]]:
    """Documents of text files, read as corpus preparation reads them: a document is a list of lines."""
    for path in paths:
        document: list[str] = []
        for line in read_lines(path, tally):
            if line:
                document.append(line)
            elif document:
                yield document
                document = []
        if document:
            yield document


def sentences(document: list[str]) -> Iterator[str]:
    """Sentences of running text: of a fitting length, nearly all of it letters, with a stop at the end."""
    for paragraph in document:
        for sentence in SENTENCE_END.split(paragraph):
            letters = sum(character.isalpha() or character == " " for character in sentence)
            if len(sentence.split()) in WORDS and sentence[-1] in ".!?" and letters >= 0.9 * len(sentence):
                yield sentence


def can_move(sentence: str) -> bool:
    """Whether the words between the first and the last are MOVED different ones at least."""
    return len({word.lower() for word in sentence.split()[1:-1]}) >= MOVED


def move_words(sentence: str, rng: random.Random) -> str:
    """The sentence with MOVED words, different ones and neither first nor last, moved around in one cycle."""
    words = sentence.split()
    places: list[int] = []
    for place in rng.sample(range(1, len(words) - 1), len(words) - 2):
        if len(places) < MOVED and words[place].lower() not in [words[p].lower() for p in places]:
            places.append(place)
    moved = words[:]
    for place, source in zip(places, places[1:] + places[:1]):
        moved[place] = words[source]
    return " ".join(moved)


def examples(natural: list[str], versions: int, rng: random.Random) -> list[tuple[str, str]]:
    """(label, sentence), as many natural ones as such with moved words, in random order."""
    pairs = [("1", sentence) for sentence in natural for _ in range(versions)]
    pairs += [("0", move_words(sentence, rng)) for _, sentence in pairs]
    rng.shuffle(pairs)
    return pairs


def write(documents: Iterable[list[str]], out: Path, seed: int) -> dict[str, int]:
    """Writes the files under ``out`` and returns how much they hold.

    Raises:
        ValueError: there is too little text to make a task of.
    """
    rng = random.Random(seed)
    natural: dict[str, None] = {}  # a set in order
    counts = {"pre-training documents": 0, "held-out documents": 0}
    folder = out / "glue" / "WordOrder"
    folder.mkdir(parents=True, exist_ok=True)
    with (out / "pretrain.txt").open("w", encoding="utf-8") as pretrain:
        for document in documents:
            # the first always goes to pre-training
            if counts["pre-training documents"] and rng.random() < 1 / HELD_OUT:
                counts["held-out documents"] += 1
                natural.update(dict.fromkeys(filter(can_move, sentences(document))))
            else:
                counts["pre-training documents"] += 1
                pretrain.write("\n".join(document) + "\n\n")
    usable = list(natural)
    rng.shuffle(usable)
    dev, train = usable[: len(usable) // 4], usable[len(usable) // 4 :]
    if len(dev) < 20:
        raise ValueError(
            f"only {len(usable)} sentences of {WORDS[0]} to {WORDS[-1]} words in the held-out documents: too "
            "few for a word-order task; give more text, with blank lines between documents"
        )
    versions = max(1, TRAIN_ROWS // (2 * len(train)))
    for split, rows in (("train", examples(train, versions, rng)), ("dev", examples(dev, 1, rng))):
        counts[f"{split} rows"] = len(rows)
        lines = (f"held-out\t{label}\t\t{sentence}\n" for label, sentence in rows)
        (folder / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")
    return counts


def main() -> None:
    """Command line; see the module's text."""
    parser = argparse.ArgumentParser(
        prog="python -m tupe_fairseq.word_order", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "texts", nargs="*", type=Path, metavar="TEXT", help="UTF-8 text (default: Python's documentation)"
    )
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    tally = Tally()
    documents = read_documents(args.texts, tally) if args.texts else python_documents()
    try:
        counts = write(documents, args.out, args.seed)
    except (ValueError, OSError) as error:
        sys.exit(f"word_order: {error}")
    counts.update((f"removed {what}", count) for what, count in tally.removed.items() if count)
    print(", ".join(f"{count:,} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
