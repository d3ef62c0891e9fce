"""What the user reads about a corpus."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tupe_fairseq.cleaning import Tally
from tupe_fairseq.corpus_report import notes_on_reading, nothing_left, summarize, table, unigram_bits
from tupe_fairseq.encoding import Encoded

#                        <s> <pad> </s> <unk> and two pieces
TRAIN = Encoded(np.array([0, 0, 10, 0, 980, 1010]), rows=10, longest=500)
VALID = Encoded(np.array([0, 0, 2, 0, 4, 2]), rows=2, longest=6)


def tally(**counts: dict[str, int]) -> Tally:
    return Tally(**{name: Counter(numbers) for name, numbers in counts.items()})


@pytest.mark.parametrize(
    ("met", "sentence"),
    [
        (tally(), "the texts hold only blank lines"),
        (
            tally(dropped={"markup": 2, "too short": 1000}),
            "no line is left after cleaning (1,000 too short, 2 markup); "
            "--min-letters and --min-letter-share let more pass",
        ),
        (
            tally(dropped={"too short": 3}, undecodable={"a": 2000, "b": 0}),
            "no line is left after cleaning (3 too short); a has bytes that are no UTF-8, or U+FFFD, "
            "which once were such (2,000); they are left out: convert it first, "
            "for example with iconv -f WINDOWS-1252 -t UTF-8",
        ),
    ],
)
def test_nothing_left(met: Tally, sentence: str) -> None:
    assert nothing_left(met) == sentence


def test_notes_on_reading() -> None:
    assert notes_on_reading(tally(dropped={"markup": 1}, undecodable={"a": 0})) == []
    met = tally(undecodable={"a": 1, "b": 30, "c": 2})
    met.cuts = 4
    damaged, cut = notes_on_reading(met)
    assert damaged.startswith(
        "b (and 2 files with fewer) has bytes that are no UTF-8, or U+FFFD, which once were such (30);"
    )
    assert cut == "lines of more than 10,000 characters were cut in 4 places"


def test_unigram_bits() -> None:
    assert unigram_bits(np.array([0, 2, 1, 0, 1])) == 1.5  # 1/2 x 1 bit + 2 x 1/4 x 2 bits
    assert unigram_bits(np.array([0, 7])) == 0


def test_the_table_shows_the_summary() -> None:
    met = Tally(3_000_000, 16, 4, 6, Counter({"too short": 5}), Counter({"control characters": 1}))
    summary = summarize([Path("a"), Path("b")], met, [2, 1], [TRAIN, VALID], ["look at this"], 1)
    stages = {"cleaning": {"bytes": 3_000_000, "seconds": 1.25, "mb_per_second": 2.4}}
    shown = table(summary | {"seconds": 2.0, "mb_per_second": 1.5, "stages": stages}).splitlines()
    assert [" ".join(line.split()) for line in shown] == [
        "files 2",
        "bytes 3,000,000",
        "removed: undecodable bytes 0",
        "removed: control characters 1",
        "removed: odd line breaks 0",
        "lines read 16",
        "lines blank 4",
        "lines kept 6",
        "dropped: too short 5",
        "dropped: few letters 0",
        "dropped: markup 0",
        "dropped: repeated 0",
        "train valid",
        "documents 2 1",
        "rows 10 2",
        "tokens 2,000 8",
        "tokens in the longest row 500",
        "vocabulary 6",
        "unknown pieces 0.000%",
        "unigram entropy of valid 1.500 bits a token",  # 1/2 x 1 bit + 2 x 1/4 x 2 bits
        "seconds 2.0 (1.5 MB/s)",
        "cleaning 1.2 (2.4 MB/s)",
        "note: look at this",
        "note: only 8 tokens validate; a smaller --valid-every takes more",
    ]


def test_many_unknown_pieces_are_told() -> None:
    def told(unknown: int) -> tuple[float, list[str]]:
        train = Encoded(np.array([0, 0, 5, unknown, 500, 494 - unknown]), 5, 200)
        summary = summarize([], Tally(), [1, 1], [train, VALID], [], 0.2)
        return summary["unknown_share"], [note for note in summary["notes"] if "unknown" in note]

    assert told(10) == (0.01, [])  # of 1,000 pieces
    note = "1.1% of the pieces are unknown: the vocabulary lacks characters of the text"
    assert told(11) == (0.011, [note])
    assert told(200)[0] == 0.2
    with pytest.raises(ValueError, match=r"^20\.1% of the pieces are unknown, over --max-unknown 0\.2: "):
        told(201)


@pytest.mark.parametrize("tokens, told", [(4_999, True), (5_000, False)])
def test_few_validation_tokens_are_told(tokens: int, told: bool) -> None:
    valid = Encoded(np.array([0, 0, 1, 0, 0, tokens - 1]), 1, tokens)
    assert bool(summarize([], Tally(), [1, 1], [TRAIN, valid], [], 0.2)["notes"]) is told
