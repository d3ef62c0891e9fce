"""The vocabulary: SentencePiece pieces whose ids are fairseq's ids.

SentencePiece is trained so that `<s>`, `<pad>`, `</s>` and `<unk>` get the ids that fairseq's `Dictionary`
gives them, and `dict.txt` lists the other pieces in SentencePiece's order: one id means one piece everywhere,
and no offset exists anywhere. `<mask>` is no piece; the task appends it to fairseq's dictionary, behind the
last piece.

A vocabulary is a folder with two files: `spm.model` (SentencePiece) and `dict.txt` (fairseq).
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's Dictionary.__init__ adds them in this order
BOS, PAD, EOS, UNK = range(4)
MASK = "<mask>"

MODEL_FILE = "spm.model"
DICTIONARY_FILE = "dict.txt"

# The rarest characters, 1/100,000 of a text together, are unknown: strays in a large text, hardly any in a
# small one. Learnt on 4 MB of Wikipedia, 8,000 pieces keep 178 of 219 characters and leave 0.003% of them
# unknown (0.03% with 0.9999, which also loses the backquotes of SST-2). 1.0 would spend thousands of 32,768
# pieces on the scripts that a full Wikipedia quotes.
CHARACTER_COVERAGE = 0.99999
LONGEST_WORD = 1000  # characters, of at most 4 bytes; SentencePiece skips what has over 4,192 bytes

MANY_UNKNOWN = 0.01  # share of unknown pieces worth a note
MAX_UNKNOWN = 0.2  # with a larger one, text and vocabulary do not belong together

_NAME_OF_SPECIAL = re.compile(f"<(?={'|'.join(name[1:] for name in SPECIALS)})", re.IGNORECASE)
_TOO_LARGE = re.compile(r"Vocabulary size too high.*<= (\d+)")
_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


class VocabularyTooLarge(ValueError):
    """The text cannot give as many pieces as were asked for; `largest` would do."""

    def __init__(self, size: int, largest: int) -> None:
        super().__init__(f"a vocabulary of {size} is too large for this text: it gives at most -v {largest}")
        self.largest = largest


def train(sentences: Iterable[str], size: int, folder: Path) -> None:
    """Learns `size` lower-cased byte-pair pieces, the four specials among them, and writes `folder/spm.model`
    and `folder/dict.txt` (with counts of 0, which `write_dictionary` replaces once the text is encoded).

    The same sentences give the same files. Raises VocabularyTooLarge, and ValueError for a size below the
    alphabet and for sentences without text; whatever `sentences` raises comes through.
    """
    words: Counter[str] = (
        Counter()
    )  # merges go over no space: counted words give the same pieces in less memory
    for sentence in sentences:
        words.update(sentence.split())
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_counted(words),
            input_format="tsv",
            model_writer=model,
            model_type="bpe",
            vocab_size=size,
            normalization_rule_name="nmt_nfkc_cf",  # NFKC and case folding: the paper's text is lower-cased
            character_coverage=CHARACTER_COVERAGE,
            bos_id=BOS,
            pad_id=PAD,
            eos_id=EOS,
            unk_id=UNK,
            num_threads=16,  # changes no piece, but the model file records it: the same bytes anywhere
            minloglevel=2,  # errors alone
        )
    except RuntimeError as error:
        if "KeyboardInterrupt" in str(error):  # of _counted, handed on as text
            raise KeyboardInterrupt from None
        raise _explained(str(error), size) from None
    pieces = _pieces(_load(model.getvalue(), "the trained model"))
    (folder / MODEL_FILE).write_bytes(model.getvalue())
    write_dictionary(folder / DICTIONARY_FILE, pieces, [0] * len(pieces))


def write_dictionary(path: Path, pieces: Sequence[str], counts: Sequence[int]) -> None:
    """Writes fairseq's `dict.txt`: `piece count` for every id but those of the specials.

    pieces, counts: indexed by id, the specials included.
    """
    first = len(SPECIALS)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for piece, count in zip(pieces[first:], counts[first:]):
            file.write(f"{piece} {count}\n")


def dictionary_fingerprint(symbols: Iterable[str]) -> str:
    """SHA-256 (hex) of symbols in the order of their ids, the specials and `<mask>` included."""
    return hashlib.sha256("\n".join(symbols).encode()).hexdigest()


def check_unknown(share: float, most: float) -> str | None:
    """A note where many pieces of a text are unknown; raises ValueError for a share above `most`."""
    if share > most:
        raise ValueError(
            f"{share:.1%} of the pieces are unknown, over --max-unknown {most:g}: the vocabulary is not one "
            "for this text; learn one on it, or raise --max-unknown (1 lets all pass)"
        )
    if share > MANY_UNKNOWN:
        return f"{share:.1%} of the pieces are unknown: the vocabulary lacks characters of the text"
    return None


class Vocabulary:
    """Text to ids and back, with the files of one folder.

    Raises FileNotFoundError for a missing file, and ValueError for files that are damaged, that have other
    special ids, or that disagree.
    """

    def __init__(self, folder: str | Path) -> None:
        model = _existing(Path(folder) / MODEL_FILE)
        dictionary = _existing(Path(folder) / DICTIONARY_FILE)
        self._model_bytes = model.read_bytes()
        self._processor = _load(self._model_bytes, str(model))
        self.pieces = _pieces(self._processor)  # indexed by id, the specials included
        _check_agreement(self.pieces[len(SPECIALS) :], read_dictionary(dictionary), dictionary)

    def __len__(self) -> int:
        """Pieces with the four specials, without `<mask>`."""
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Ids of the lower-cased text, none added.

        A literal `<mask>` or `</s>` is spelled out like other text; one UNK is a run of unknown characters.
        """
        return self._processor.encode(text)

    def normalize(self, text: str) -> str:
        """The lower-cased text as pieces cut it, with U+2581 for spaces and before the first word."""
        return self._processor.normalize(text)

    def decode(self, ids: Iterable[int]) -> str:
        """The lower-cased text; `<s>`, `<pad>` and `</s>` vanish, `<unk>` becomes U+2047."""
        return self._processor.decode([int(i) for i in ids])

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the ordered pieces and the model file: equal for equal vocabularies only."""
        digest = hashlib.sha256("\n".join(self.pieces).encode())
        digest.update(self._model_bytes)
        return digest.hexdigest()


def _counted(words: Counter[str]) -> Iterator[str]:
    """Words with their numbers, as SentencePiece takes them; each leaves the counter, for it is copied.

    "< unk>" stands for "<unk>": SentencePiece skips the names of specials, and would not learn characters
    that occur in them alone (WikiText has no other "<").
    """
    while words:
        word, number = words.popitem()
        word = _NAME_OF_SPECIAL.sub("< ", word)
        for begin in range(0, len(word), LONGEST_WORD):
            yield f"{word[begin : begin + LONGEST_WORD]}\t{number}"


def _explained(message: str, size: int) -> ValueError:
    """SentencePiece's message as a sentence that names the way out."""
    too_large = _TOO_LARGE.search(message)
    if too_large:
        return VocabularyTooLarge(size, int(too_large[1]))
    too_small = _TOO_SMALL.search(message)
    if too_small:
        least = int(too_small[1])
        return ValueError(
            f"a vocabulary of {size} is too small: this text's characters and the specials take -v {least}"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return ValueError("there is no text to learn a vocabulary from")
    return ValueError(f"SentencePiece could not learn a vocabulary of {size}: {message}")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}: scripts/prepare_corpus.sh makes a vocabulary")
    return path


def _load(model: bytes, name: str) -> sentencepiece.SentencePieceProcessor:
    try:
        if model:  # no bytes load as a model without pieces
            return sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
        pass
    raise ValueError(f"{name} is no SentencePiece model; make it again with scripts/prepare_corpus.sh")


def _pieces(processor: sentencepiece.SentencePieceProcessor) -> list[str]:
    """All pieces by id; checks that each has one meaning for SentencePiece, fairseq and the task."""
    pieces = [processor.id_to_piece(i) for i in range(len(processor))]
    if tuple(pieces[: len(SPECIALS)]) != SPECIALS:
        raise ValueError(
            f"the SentencePiece model begins with {pieces[: len(SPECIALS)]}, not with {list(SPECIALS)}; "
            "train it with scripts/prepare_corpus.sh"
        )
    if len(set(pieces)) != len(pieces):
        raise ValueError("the SentencePiece model has a piece twice; train it with scripts/prepare_corpus.sh")
    if MASK in pieces:
        raise ValueError(
            f"the SentencePiece model has the piece {MASK}, a name that the task needs; "
            "train it with scripts/prepare_corpus.sh"
        )
    return pieces


def read_dictionary(path: Path) -> list[str]:
    """The pieces of a dict.txt in their order; damaged bytes give pieces that agree with no model."""
    pieces = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        piece, _, count = line.rpartition(" ")
        if not (piece and count.isdigit()):
            raise ValueError(
                f"{path}, line {number} is {line!r:.60}, not 'piece count'; make the corpus again"
            )
        pieces.append(piece)
    return pieces


def _check_agreement(model: list[str], dictionary: list[str], path: Path) -> None:
    """Both without the specials."""
    if len(model) != len(dictionary):
        raise ValueError(
            f"{path} has {len(dictionary):,} pieces but {MODEL_FILE} beside it {len(model):,}; "
            "they are not of one vocabulary"
        )
    for i, (ours, theirs) in enumerate(zip(model, dictionary), start=len(SPECIALS)):
        if ours != theirs:
            raise ValueError(
                f"{path} has {theirs!r:.60} where {MODEL_FILE} beside it has {ours!r:.60} (id {i}); "
                "they are not of one vocabulary"
            )
