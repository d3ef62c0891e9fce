"""What the quickstart shows at its end: a table, two pictures and ``summary.json``.

    python -m tupe_fairseq.quickstart_report OUT_DIR

OUT_DIR holds corpus/, pretrain/ and finetune/ as the scripts leave them, and seconds.tsv: a line for each
step of the quickstart, its name, a tab and its seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .plots import plot_curves, plot_positions, read_curve
from .save_folder import LAST


def summarize(out: Path) -> dict[str, Any]:
    """The figures of a finished quickstart, under the keys of ``summary.json``.

    Losses are bits a masked token, MCC and accuracy fractions, both of the checkpoint with the best MCC.
    """
    corpus = out / "corpus" / "summary.json"
    _, loss = read_curve(out / "pretrain")
    _, mcc = read_curve(out / "finetune", key="mcc")
    _, accuracy = read_curve(out / "finetune", key="accuracy")
    best = mcc.index(max(mcc))
    return {
        "unigram_bits": _read(corpus, lambda text: float(json.loads(text)["unigram_bits"])),
        "valid_bits_first": loss[0],
        "valid_bits_last": loss[-1],
        "finetune_mcc": mcc[best],
        "finetune_accuracy": accuracy[best],
        "seconds": _read(out / "seconds.tsv", _seconds),
    }


def _seconds(text: str) -> dict[str, int]:
    return {name: int(seconds) for name, seconds in (line.split("\t") for line in text.splitlines())}


def _read(path: Path, parse: Callable[[str], Any]) -> Any:
    """What a file says; raises ValueError where it is not what the quickstart wrote."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error!r:.100}); run the quickstart again") from None


def table(summary: dict[str, Any]) -> str:
    """The figures as a short table."""
    below = summary["unigram_bits"] - summary["valid_bits_last"]
    rows = [
        ("Pre-training: bits a masked token on held-out text", ""),
        ("  before the first update", f"{summary['valid_bits_first']:.2f}"),
        ("  after the last", f"{summary['valid_bits_last']:.2f}"),
        ("  entropy of single tokens, without any context", f"{summary['unigram_bits']:.2f}"),
        ("  learned from context", f"{below:.2f}"),
        ("Fine-tuning: natural word order, or three words moved?", ""),
        ("  Matthews correlation (0 is chance, 1 is perfect)", f"{summary['finetune_mcc']:.2f}"),
        ("  accuracy", f"{summary['finetune_accuracy']:.1%}"),
        ("Seconds", f"{sum(summary['seconds'].values())}"),
        *((f"  {name}", f"{seconds}") for name, seconds in summary["seconds"].items()),
    ]
    return "\n".join(f"{name:<56}{value:>8}".rstrip() for name, value in rows)


def main() -> None:
    """Command line; see the module's text."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m tupe_fairseq.quickstart_report OUT_DIR")
    out = Path(sys.argv[1])
    try:
        summary = summarize(out)
        plot_curves([str(out / "pretrain")], str(out / "loss.png"), summary["unigram_bits"])
        plot_positions(str(out / "pretrain" / LAST), str(out / "positions.png"))
    except (ValueError, OSError) as error:
        sys.exit(f"quickstart_report: {error}")
    (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    print(table(summary))


if __name__ == "__main__":
    main()
