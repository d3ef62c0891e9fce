"""What is told of a corpus: the figures of `summary.json`, notes on what deserves a look, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .cleaning import LONGEST_LINE, Tally
from .encoding import Encoded
from .line_rules import DROPPED, REMOVED
from .splitting import SPLITS
from .vocabulary import EOS, UNK, check_unknown

FEW_TOKENS = 5_000  # of validation: some 750 masked ones, whose mean loss is uncertain by 0.1 bits or so


def nothing_left(tally: Tally) -> str:
    """The sentence for texts of which no line is left."""
    if not tally.dropped:
        return "the texts hold only blank lines"
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in tally.dropped.most_common())
    advice = "; ".join(notes_on_reading(tally)) or "--min-letters and --min-letter-share let more pass"
    return f"no line is left after cleaning ({reasons}); {advice}"


def notes_on_reading(tally: Tally) -> list[str]:
    """Notes on encodings and long lines."""
    notes = []
    damaged = [(path, lost) for path, lost in tally.undecodable.most_common() if lost]
    if damaged:
        more = f" (and {len(damaged) - 1:,} files with fewer)" if damaged[1:] else ""
        notes.append(
            f"{damaged[0][0]}{more} has bytes that are no UTF-8, or U+FFFD, which once were such "
            f"({damaged[0][1]:,}); they are left out: convert it first, for example with "
            "iconv -f WINDOWS-1252 -t UTF-8"
        )
    if tally.cuts:
        notes.append(f"lines of more than {LONGEST_LINE:,} characters were cut in {tally.cuts:,} places")
    return notes


def unigram_bits(counts: np.ndarray) -> float:
    """Entropy, in bits a token, of the distribution of ids that stand `counts` times in a text."""
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def summarize(
    texts: Sequence[Path],
    tally: Tally,
    documents: Sequence[int],
    encoded: Sequence[Encoded],
    notes: list[str],
    max_unknown: float,
) -> dict[str, Any]:
    """All of `summary.json` but the time.

    documents, encoded: of train, then of valid.

    Raises ValueError for a larger share of unknown pieces than `max_unknown`.
    """
    counts = encoded[0].counts + encoded[1].counts
    unknown = int(counts[UNK]) / int(counts.sum() - counts[EOS])
    if lack := check_unknown(unknown, max_unknown):
        notes = [*notes, lack]
    validating = int(encoded[1].counts.sum())
    if validating < FEW_TOKENS:
        notes = [*notes, f"only {validating:,} tokens validate; a smaller --valid-every takes more"]
    return {
        "files": [str(path) for path in texts],
        "bytes": tally.bytes,
        "removed": {kind: tally.removed[kind] for kind in REMOVED},
        "lines": {"read": tally.read, "blank": tally.blank, "kept": tally.kept},
        "dropped": {reason: tally.dropped[reason] for reason in DROPPED},
        "documents": dict(zip(SPLITS, documents)),
        "rows": {split: one.rows for split, one in zip(SPLITS, encoded)},
        "tokens": {split: int(one.counts.sum()) for split, one in zip(SPLITS, encoded)},
        "longest_row": max(one.longest for one in encoded),
        "vocabulary": len(counts),
        "unknown_share": unknown,
        "unigram_bits": unigram_bits(encoded[1].counts),
        "notes": notes,
    }


def table(summary: dict[str, Any]) -> str:
    """The summary for a screen: a name and its numbers a line, then the notes."""
    rows = [
        _row("files", len(summary["files"])),
        _row("bytes", summary["bytes"]),
        *(_row(f"  removed: {kind}", number) for kind, number in summary["removed"].items()),
        *(_row(f"lines {name}", number) for name, number in summary["lines"].items()),
        *(_row(f"  dropped: {reason}", number) for reason, number in summary["dropped"].items()),
        _row("", *SPLITS),
        *(_row(name, *summary[name].values()) for name in ("documents", "rows", "tokens")),
        _row("tokens in the longest row", summary["longest_row"]),
        _row("vocabulary", summary["vocabulary"]),
        _row("unknown pieces", f"{summary['unknown_share']:.3%}"),
        _row("unigram entropy of valid", f"{summary['unigram_bits']:.3f}") + " bits a token",
        _time("seconds", summary),
        *(_time(f"  {name}", stage) for name, stage in summary["stages"].items()),
    ]
    return "\n".join(rows + [f"note: {note}" for note in summary["notes"]])


def _row(name: str, *cells: int | str) -> str:
    shown = (f"{cell:,}" if isinstance(cell, int) else cell for cell in cells)
    return f"{name:<32}" + "".join(f"{cell:>14}" for cell in shown)


def _time(name: str, stage: dict[str, float]) -> str:
    return _row(name, f"{stage['seconds']:.1f}") + f" ({stage['mb_per_second']:.1f} MB/s)"
