"""GLUE as the paper reports it: a task's median over seeds at the best rate, and the average of nine."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean, median

from .glue import KNOWN
from .glue_register import load_sweeps
from .glue_results import Result, dev_set_name, load_results

AVERAGE = "average of nine"
NINE = ("MNLI-m", "MNLI-mm", "QNLI", "QQP", "SST-2", "CoLA", "MRPC", "RTE", "STS-B")
# arXiv:2006.15595, Table 1: dev sets, base size, 1M updates; in the order of NINE, then their average.
PAPER = {
    variant: dict(zip((*NINE, AVERAGE), numbers))
    for variant, numbers in {
        "bert_a": (84.93, 84.91, 91.34, 91.04, 92.88, 55.19, 88.29, 68.61, 89.43, 82.96),
        "bert_r": (85.81, 85.84, 92.16, 91.12, 92.90, 55.43, 89.26, 71.46, 88.94, 83.66),
        "tupe_a": (86.05, 85.99, 91.92, 91.16, 93.19, 63.09, 88.37, 71.61, 88.88, 84.47),
        "tupe_r": (86.21, 86.19, 92.17, 91.30, 93.26, 63.56, 89.89, 73.56, 89.23, 85.04),
        "tupe_a_tie_cls": (85.91, 85.73, 91.90, 91.05, 93.17, 59.46, 88.53, 69.54, 88.97, 83.81),
        "bert_a_d": (85.26, 85.28, 91.56, 91.02, 92.70, 59.73, 88.46, 71.31, 87.47, 83.64),
    }.items()
}
TEXT = """\
Each number is the median over seeds, times 100, at the best validation of a run; min and max are over the
same seeds. A task's first metric, on its first dev set, chooses: of a run the validation where it is highest,
of the rates the one with the highest median (of equal ones, the smallest)."""


@dataclass(frozen=True)
class Row:
    """A metric of a dev set, or the average; numbers are times 100."""

    task: str  # of MNLI, MNLI-m or MNLI-mm
    metric: str
    rate: str  # the best
    median: float
    min: float | None
    max: float | None
    seeds: int | None  # at that rate
    finished: int | None  # runs, at all rates
    planned: int | None  # if known
    paper: float | None


def report(runs: Path, out: Path | None = None) -> str:
    """The report on a folder of scripts/sweep_glue.sh, in Markdown; also written to `out` as CSV.

    Raises:
        FileNotFoundError: no run is finished.
        ValueError: runs are of more than one model.
    """
    results = load_results(runs)
    variants = sorted({result.variant for result in results})
    if len(variants) > 1:
        raise ValueError(
            f"{runs} holds runs of {' and '.join(variants)}; sweep each into a folder of its own"
        )
    by_task = defaultdict(list)
    for result in results:
        by_task[result.task.name].append(result)
    for task, of_task in by_task.items():
        if any(result.settings != of_task[0].settings for result in of_task):
            raise ValueError(
                f"runs of {task} in {runs} had different settings; sweep each into its own folder"
            )
    planned = {task: len(sweep.runs) for task, sweep in load_sweeps(runs).items()}
    rows = [
        row for task in sorted(by_task, key=_place) for row in task_rows(by_task[task], planned.get(task))
    ]
    average, missing = average_row(rows, variants[0])
    rows += [average] if average else []
    if out:
        write_csv(out, rows)
    waiting = sorted(planned.keys() - by_task.keys(), key=_place)
    return "\n\n".join([f"GLUE, {variants[0]}", markdown(rows), *notes(variants[0], missing, waiting)])


def _place(name: str) -> tuple[int, str]:
    """Where a task stands in the report: as in the table, and one's own behind."""
    order = list(KNOWN)
    return (order.index(name) if name in order else len(order), name)


def best_rate(results: Iterable[Result]) -> str:
    """The rate with the highest median of what chooses; of equal ones, the smallest."""
    by_rate = defaultdict(list)
    for result in results:
        by_rate[result.rate].append(first_metric(result))
    return max(by_rate, key=lambda rate: (median(by_rate[rate]), -float(rate)))


def first_metric(result: Result) -> float:
    """What chooses the rate."""
    return result.metrics["valid"][result.task.metrics[0]]


def task_rows(results: Sequence[Result], planned: int | None) -> list[Row]:
    """A row for each metric of each dev set; the first metric of a dev set stands beside the paper's."""
    task, rate = results[0].task, best_rate(results)
    at_best = [result for result in results if result.rate == rate]
    rows = []
    for split in at_best[0].metrics:
        name = dev_set_name(task, split)
        common = set.intersection(*(set(result.metrics.get(split, ())) for result in at_best))
        if not common:
            raise ValueError(f"not all runs of {task.name} were validated on {name}; delete and repeat those")
        others = common - {*task.metrics, "loss"}
        for metric in (*task.metrics, *sorted(others)):
            values = [round(100 * result.metrics[split][metric], 5) for result in at_best]
            paper = PAPER.get(at_best[0].variant, {}).get(name) if metric == task.metrics[0] else None
            spread = (median(values), min(values), max(values), len(values))
            rows.append(Row(name, metric, rate, *spread, len(results), planned, paper))
    return rows


def average_row(rows: Sequence[Row], variant: str) -> tuple[Row | None, list[str]]:
    """The average of the paper's nine numbers, if all are there; and the names of those that are missing."""
    first = {row.task: row.median for row in reversed(rows)}  # of a task's rows, the first stays
    missing = [name for name in NINE if name not in first]
    if missing:
        return None, missing
    paper = PAPER.get(variant, {}).get(AVERAGE)
    average = mean(first[name] for name in NINE)
    return Row(AVERAGE, "", "", average, None, None, None, None, None, paper), []


def markdown(rows: Sequence[Row]) -> str:
    """A table of the rows."""
    header = ("task", "metric", "rate", "median", "min", "max", "seeds", "runs", "paper")
    lines: list[tuple[str, ...]] = [header, ("---",) * 3 + ("---:",) * 6]
    for row in rows:
        numbers = [_number(value) for value in (row.median, row.min, row.max)]
        runs = str(row.finished or "") + (f"/{row.planned}" if row.planned else "")
        lines.append(
            (row.task, row.metric, row.rate, *numbers, str(row.seeds or ""), runs, _number(row.paper))
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def notes(variant: str, missing: Sequence[str], waiting: Sequence[str]) -> list[str]:
    """What a reader must know about the table."""
    found = [TEXT]
    if missing:
        found.append(f"No {AVERAGE}: {', '.join(missing)} missing.")
    if waiting:
        found.append(f"Planned, and no run is finished: {', '.join(waiting)}.")
    if variant in PAPER:
        found.append("paper: arXiv:2006.15595, Table 1, the same variant in base size after 1M updates.")
    else:
        found.append(f"The paper has no row for {variant}.")
    return found


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The rows with all their digits; a cell without a value is empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
