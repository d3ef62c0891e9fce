"""What `benchmark` measured, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

NAMES = {"roberta": "fairseq RoBERTa", "hugging_face": "Hugging Face BERT", "floor": "torch.mm alone"}
PARTS = ("forward", "backward", "clip", "optimizer")


def markdown(parts: Mapping[str, Any]) -> str:
    """All parts that were measured; behind those of one run, how and where that was."""
    names = [name for name in SECTIONS if name in parts]
    blocks = []
    for run, same in groupby(names, key=lambda name: _run(parts[name]["run"])):
        blocks += [*(SECTIONS[name](parts[name]) for name in same), run]
    return "\n\n".join(blocks) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is of words, the others of numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Median of the ratios of the rounds, and the smallest and largest of them."""
    each = [a / b for a, b in zip(ours, theirs)]
    return f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})"


def _totals(seconds: Mapping[str, Sequence[float]]) -> list[float]:
    """Seconds of the step of each round."""
    return [sum(parts) for parts in zip(*seconds.values())]


def _steps(part: Mapping[str, Any]) -> str:
    cases = part["cases"]
    peers = list(dict.fromkeys(name for case in cases.values() for name in case["seconds"]))
    ours, others = peers[0], [name for name in peers if name in NAMES]
    first = next(iter(cases.values()))
    rounds = len(first["seconds"][ours]["forward"])
    rows = []
    for name, case in cases.items():
        totals = {peer: _totals(seconds) for peer, seconds in case["seconds"].items()}
        cells = [ratios(totals[ours], totals[peer]) if peer in totals else "" for peer in others]
        rows.append([_title(name), f"{median(totals[ours]):.3f}", *cells])
    header = ["batch x tokens", f"{ours}, seconds", *(f"/ {NAMES[peer]}" for peer in others)]
    left_out = {
        f"{NAMES.get(peer, peer)}: {why}."
        for case in cases.values()
        for peer, why in case["left_out"].items()
    }
    return "\n\n".join(
        [
            f"### A step of training: {ours} against the others",
            table(header, rows),
            f"Times of {ours} over the others', below 1 where it is faster: medians of {rounds} rounds in "
            f"which all take turns, and the smallest and largest. {_size(first)}; {_optimizers(first)}.",
            *sorted(left_out),
            "### Parts of a step, milliseconds",
            _parts(cases),
        ]
    )


def _optimizers(case: Mapping[str, Any]) -> str:
    """Who is updated by what, in words."""
    return ", ".join(f"{NAMES.get(peer, peer)} with {name}" for peer, name in case["optimizer"].items())


def _parts(cases: Mapping[str, Any]) -> str:
    rows = []
    for name, case in cases.items():
        for peer, seconds in case["seconds"].items():
            cells = [f"{1000 * median(seconds[part]):.1f}" if part in seconds else "" for part in PARTS]
            rows.append(
                [_title(name), NAMES.get(peer, peer), *cells, f"{1000 * median(_totals(seconds)):.1f}"]
            )
    # The second column is of words, too.
    return table(["batch x tokens", "", *PARTS, "step"], rows).replace("| --- | ---: |", "| --- | --- |", 1)


def _title(case: str) -> str:
    """ "1x2048:layers=4" as words."""
    size, _, rest = case.partition(":")
    words = [
        word.replace("layers=", "layers ").replace("dropout=", "dropout ") for word in rest.split(",") if word
    ]
    return ", ".join([size.replace("x", " x "), *words])


def _memory(part: Mapping[str, Any]) -> str:
    work, peers = part["work"], part["peers"]
    ours = next(iter(peers.values()))
    rows = [[NAMES.get(peer, peer), *_bytes(result, ours)] for peer, result in peers.items()]
    return "\n\n".join(
        [
            f"### Peak memory of training, {work['batch']} x {work['length']} tokens",
            table(["", "MB", f"{next(iter(peers))} / it"], rows),
            "Each in a process of its own: weights, gradients, state of the optimizer, activations and what "
            f"the allocator keeps. {_size(part)}.",
        ]
    )


def _bytes(result: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    if "left_out" in result:
        return [result["left_out"], ""]
    ratio = f"{ours['bytes'] / result['bytes']:.2f}" if "bytes" in ours else ""
    return [f"{result['bytes'] / 1e6:,.0f}", ratio]


def _growth(part: Mapping[str, Any]) -> str:
    rows = []
    for length, peers in part["lengths"].items():
        ours = next(iter(peers.values()))
        times, sizes = [], []
        for result in peers.values():
            times.append(f"{1000 * result['seconds']:,.0f}" if "seconds" in result else result["left_out"])
            sizes.append(_bytes(result, ours)[0])
        last = list(peers.values())[-1]
        both = "bytes" in ours and "bytes" in last
        over = [f"{ours[what] / last[what]:.2f}" if both else "" for what in ("seconds", "bytes")]
        rows.append([length, *times, over[0], *sizes, over[1]])
    names = [NAMES.get(peer, peer) for peer in next(iter(part["lengths"].values()))]
    columns = [[*(f"{name}, {unit}" for name in names), "ratio"] for unit in ("ms", "MB")]
    note = "Each in a process of its own: the faster of two steps, and peak memory as above."
    grown = table(["tokens", *columns[0], *columns[1]], rows)
    return f"### A step as sequences grow, batch 1\n\n{grown}\n\n{note} {_size(part)}."


def _size(measured: Mapping[str, Any]) -> str:
    """The size of the models, in words."""
    work = measured["work"]
    precision = "bfloat16" if work["device"] == "cuda" else "float32"
    return f"Layers {work['layers']}, width {work['width']}, vocabulary {work['vocab']:,}, {precision}"


def _train(part: Mapping[str, Any]) -> str:
    seconds, loading = part["seconds"], part["loading"]
    *_, stock = seconds
    medians = {name: [median(run) for run in runs] for name, runs in seconds.items()}
    rows = []
    for name in seconds:
        batch, update = median(loading[name]["seconds"]), median(medians[name])
        ratio = "1.00" if name == stock else ratios(medians[name], medians[stock])
        rows.append([name, f"{update:.3f}", ratio, f"{1000 * batch:.1f}", f"{batch / update:.2%}"])
    header = ["", "seconds an update", f"/ {stock}", "ms to make a batch", "of an update"]
    runs = seconds[stock]
    note = (
        f"Updates of {part['batch']} sequences by fairseq-train: ours by scripts/pretrain.sh and its recipe, "
        f"{stock} by stock fairseq with the same numbers, data and masking, and its own Adam. {len(runs)} "
        f"runs each, in turn, of {len(runs[0])} updates that count; medians of runs, and of the ratios of "
        "runs with the smallest and largest. Batches are made by a process beside the training. "
        f"Vocabulary {loading[stock]['types']:,}."
    )
    return f"### Whole updates of fairseq-train\n\n{table(header, rows)}\n\n{note}"


def _corpus(part: Mapping[str, Any]) -> str:
    seconds, megabytes = part["seconds"], part["bytes"] / 1e6
    names = {"ours": "ours: clean, encode, write", "stock": "SentencePiece to text, fairseq-preprocess"}
    times = {name: median(seconds[way]) for way, name in names.items()}
    rows = [[name, f"{time:.1f}", f"{megabytes / time:.2f}"] for name, time in times.items()]
    note = (
        f"{megabytes:,.0f} MB of text, {part['workers']} workers, without learning the vocabulary; the stock "
        "way starts from the text that ours has cleaned. The ids are the same, byte for byte. Ours / stock: "
        f"{ratios(seconds['ours'], seconds['stock'])}, rounds: {len(seconds['ours'])}."
    )
    return f"### Corpus preparation\n\n{table(['', 'seconds', 'MB/s'], rows)}\n\n{note}"


def _run(run: Mapping[str, Any]) -> str:
    machine = run["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    where = ", ".join(
        [machine["gpu"] or machine["cpu"], f"{machine['cores']} cores", f"{machine['threads']} threads"]
    )
    where += f", {machine['system']}"
    return f"`{run['command']}` at {run['commit']}, {run['date']}; {where}; {versions}."


SECTIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "steps": _steps,
    "memory": _memory,
    "growth": _growth,
    "train": _train,
    "corpus": _corpus,
}
