"""The report on a sweep: medians, best rates and averages by hand, and the paper's own table."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from commands import attempt

from tupe_fairseq import glue_cli
from tupe_fairseq.glue import TASKS
from tupe_fairseq.glue_register import Sweep, save_sweeps
from tupe_fairseq.glue_report import AVERAGE, NINE, PAPER, report
from tupe_fairseq.glue_results import Result
from tupe_fairseq.variants import VARIANTS

HEADER = "| task | metric | rate | median | min | max | seeds | runs | paper |"
OTHERS = 1 + 2 + 2 + 2  # rows: CoLA's accuracy, two more metrics of STS-B, MRPC and QQP


def finished(
    runs: Path, task: str, rate: str, seed: int, variant: str = "tupe_r", **metrics: dict[str, float]
) -> None:
    """Writes the result of a run; metrics by dev set."""
    folder = runs / task / f"lr-{rate}_seed-{seed}"
    folder.mkdir(parents=True)
    Result(TASKS[task], rate, seed, variant, "model.pt", {}, 10, metrics, 1.0).save(folder)


def lines(text: str) -> list[str]:
    """The rows of the table."""
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert table[0] == HEADER
    assert table[1].count("-:") == 6
    return table[2:]


def test_the_best_rate_has_the_highest_median(tmp_path: Path) -> None:
    """2e-5 has the highest value and the highest mean, 0.38; 3e-5 the highest median, 0.34."""
    mcc = {"2e-5": (0.1, 0.2, 0.3, 0.4, 0.9), "3e-5": (0.35, 0.05, 0.36, 0.34, 0.33)}
    accuracy = {"2e-5": (0.9,) * 5, "3e-5": (0.5, 0.9, 0.6, 0.7, 0.8)}
    for rate in mcc:
        for i in range(5):
            values = {"mcc": mcc[rate][i], "accuracy": accuracy[rate][i], "loss": 1.0}
            finished(tmp_path, "CoLA", rate, i, valid=values)
    assert lines(report(tmp_path)) == [
        "| CoLA | mcc | 3e-5 | 34.00 | 5.00 | 36.00 | 5 | 10 | 63.56 |",
        "| CoLA | accuracy | 3e-5 | 70.00 | 50.00 | 90.00 | 5 | 10 |  |",
    ]


def test_of_equal_medians_the_smallest_rate(tmp_path: Path) -> None:
    for rate in ("5e-5", "1e-4", "2e-5"):
        for seed, accuracy in enumerate((0.5, 0.6, 0.7)):
            finished(tmp_path, "RTE", rate, seed, valid={"accuracy": accuracy})
    assert lines(report(tmp_path)) == ["| RTE | accuracy | 2e-5 | 60.00 | 50.00 | 70.00 | 3 | 9 | 73.56 |"]


def test_missing_seeds_are_counted(tmp_path: Path) -> None:
    """Of two values the median is the mean; four runs were planned, and two of another task."""
    finished(tmp_path, "RTE", "2e-5", 1, valid={"accuracy": 0.5})
    finished(tmp_path, "RTE", "3e-5", 1, valid={"accuracy": 0.75})
    finished(tmp_path, "RTE", "3e-5", 2, valid={"accuracy": 0.5})
    save_sweeps(tmp_path, {"RTE": Sweep({}, list("abcd")), "QNLI": Sweep({}, list("ab"))})
    text = report(tmp_path)
    assert lines(text) == ["| RTE | accuracy | 3e-5 | 62.50 | 50.00 | 75.00 | 2 | 3/4 | 73.56 |"]
    assert "\n\nPlanned, and no run is finished: QNLI.\n\n" in text
    assert f"No {AVERAGE}: MNLI-m, MNLI-mm, QNLI, QQP, SST-2, CoLA, MRPC, STS-B missing." in text


def test_both_dev_sets_of_mnli_at_the_rate_of_the_first(tmp_path: Path) -> None:
    finished(tmp_path, "MNLI", "2e-5", 1, valid={"accuracy": 0.75}, valid1={"accuracy": 0.5})
    finished(tmp_path, "MNLI", "3e-5", 1, valid={"accuracy": 0.5}, valid1={"accuracy": 0.75})
    assert lines(report(tmp_path)) == [
        "| MNLI-m | accuracy | 2e-5 | 75.00 | 75.00 | 75.00 | 1 | 2 | 86.21 |",
        "| MNLI-mm | accuracy | 2e-5 | 50.00 | 50.00 | 50.00 | 1 | 2 | 86.19 |",
    ]


def test_metrics_that_the_table_of_glue_does_not_name(tmp_path: Path) -> None:
    values = {"batch_mean_accuracy": 0.25, "loss": 1.0, "accuracy": 0.5}
    finished(tmp_path, "RTE", "2e-5", 1, valid=values)
    assert [line.split(" | ")[1:4:2] for line in lines(report(tmp_path))] == [
        ["accuracy", "50.00"],
        ["batch_mean_accuracy", "25.00"],
    ]


def as_in_the_paper(runs: Path, variant: str, leave_out: str = "") -> None:
    """Results of all tasks, WNLI too, with the paper's numbers for a variant; other metrics are 0."""
    for name in NINE:
        if name not in ("MNLI-mm", leave_out):
            mismatched = {"accuracy": PAPER[variant]["MNLI-mm"] / 100}
            task, more = ("MNLI", {"valid1": mismatched}) if name == "MNLI-m" else (name, {})
            first, *others = TASKS[task].metrics
            metrics = {first: PAPER[variant][name] / 100, **dict.fromkeys(others, 0.0)}
            finished(runs, task, "2e-5", 1, variant, valid=metrics, **more)
    finished(runs, "WNLI", "2e-5", 1, variant, valid={"accuracy": 0.0})


@pytest.mark.parametrize("variant", PAPER)
def test_the_average_of_the_papers_numbers_is_the_papers_average(variant: str, tmp_path: Path) -> None:
    """Both, and the nine numbers, were rounded to two digits."""
    as_in_the_paper(tmp_path, variant)
    rows = [line.strip("| ").split(" | ") for line in lines(report(tmp_path))]
    assert len(rows) == 9 + OTHERS + 1 + 1
    shown = {row[0]: row for row in reversed(rows)}
    for name in NINE:
        assert shown[name][3] == shown[name][-1] == f"{PAPER[variant][name]:.2f}"
    average, paper = float(shown[AVERAGE][3]), float(shown[AVERAGE][-1])
    assert paper == PAPER[variant][AVERAGE]
    assert average == pytest.approx(paper, abs=0.0101)


def test_the_average_by_hand(tmp_path: Path) -> None:
    """84.93 + 84.91 + 91.34 + 91.04 + 92.88 + 55.19 + 88.29 + 68.61 + 89.43 = 746.62."""
    as_in_the_paper(tmp_path, "bert_a")
    last = lines(report(tmp_path))[-1]
    assert last == f"| {AVERAGE} |  |  | {746.62 / 9:.2f} |  |  |  |  | 82.96 |"


def test_no_average_of_eight(tmp_path: Path) -> None:
    as_in_the_paper(tmp_path, "tupe_a", leave_out="QQP")
    text = report(tmp_path)
    assert f"| {AVERAGE} |" not in text
    assert f"\n\nNo {AVERAGE}: QQP missing.\n\n" in text


def test_the_papers_table_names_our_variants(tmp_path: Path) -> None:
    assert PAPER.keys() == VARIANTS.keys() - {"tupe_r_tie_cls"}
    finished(tmp_path, "RTE", "2e-5", 1, "tupe_r_tie_cls", valid={"accuracy": 0.5})
    text = report(tmp_path)
    assert text.startswith("GLUE, tupe_r_tie_cls\n")
    assert lines(text) == ["| RTE | accuracy | 2e-5 | 50.00 | 50.00 | 50.00 | 1 | 1 |  |"]
    assert text.endswith("\n\nThe paper has no row for tupe_r_tie_cls.")


def test_csv_has_all_digits(tmp_path: Path) -> None:
    as_in_the_paper(tmp_path / "runs", "tupe_r")
    report(tmp_path / "runs", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {
        **{"task": "CoLA", "metric": "mcc", "rate": "2e-5", "seeds": "1", "finished": "1"},
        **{"planned": "", "paper": "63.56", "median": "63.56", "min": "63.56", "max": "63.56"},
    }
    assert rows[-1]["task"] == AVERAGE
    assert float(rows[-1]["median"]) == pytest.approx(765.37 / 9, abs=1e-9)
    assert rows[-1]["min"] == rows[-1]["seeds"] == ""


def test_results_are_not_believed(tmp_path: Path) -> None:
    """Those in a folder of another name, of other settings, or with values that no run gives."""
    finished(tmp_path, "RTE", "2e-5", 1, valid={"accuracy": 0.5})
    path = tmp_path / "RTE" / "lr-2e-5_seed-1" / "result.json"
    stored = json.loads(path.read_text())
    copy = tmp_path / "RTE" / "copy" / "result.json"
    copy.parent.mkdir()
    copy.write_text(path.read_text())
    with pytest.raises(ValueError, match=r"copy/result.json is of RTE/lr-2e-5_seed-1; move it there"):
        report(tmp_path)
    shutil.rmtree(copy.parent)
    for change in (
        {"metrics": None},
        {"metrics": {}},
        {"metrics": {"valid": {"accuracy": float("nan")}}},
        {"metrics": {"valid": {"loss": 1.0}}},
        {"metrics": {"valid": {"accuracy": "high"}}},
        {"task": "Foo"},
        {"rate": 5},
        {"settings": 5},
        {"settings": {"flags": None}},
        {"seed": "1"},
    ):
        path.write_text(json.dumps({**stored, **change}))
        with pytest.raises(ValueError, match=r"result.json is damaged; delete it, and the run is done again"):
            report(tmp_path)
    path.write_text(json.dumps({**stored, "settings": {"checkpoint": "other"}}))
    finished(tmp_path, "RTE", "2e-5", 2, valid={"accuracy": 0.5})
    with pytest.raises(ValueError, match=r"runs of RTE in .* had different settings"):
        report(tmp_path)


def test_metrics_that_only_some_runs_have(tmp_path: Path) -> None:
    more = {"accuracy": 0.5, "batch_mean_accuracy": 0.5}
    finished(tmp_path, "RTE", "2e-5", 1, valid=more)
    finished(tmp_path, "RTE", "2e-5", 2, valid={"accuracy": 0.5})
    assert len(lines(report(tmp_path))) == 1
    finished(tmp_path, "MNLI", "2e-5", 1, valid={"accuracy": 0.5}, valid1={"accuracy": 0.5})
    finished(tmp_path, "MNLI", "2e-5", 2, valid={"accuracy": 0.5})
    with pytest.raises(ValueError, match="not all runs of MNLI were validated on MNLI-mm"):
        report(tmp_path)


def test_runs_of_two_models_are_not_mixed(tmp_path: Path) -> None:
    finished(tmp_path, "RTE", "2e-5", 1, "tupe_a", valid={"accuracy": 0.5})
    finished(tmp_path, "CoLA", "2e-5", 1, "bert_a", valid={"mcc": 0.5, "accuracy": 0.5})
    with pytest.raises(ValueError, match=r"holds runs of bert_a and tupe_a; sweep each into a folder of its"):
        report(tmp_path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    finished(tmp_path, "RTE", "2e-5", 1, valid={"accuracy": 0.5})
    glue_cli.main(["report", str(tmp_path), "--csv", str(tmp_path / "out.csv")])
    assert capsys.readouterr().out == f"{report(tmp_path)}\n"
    assert (tmp_path / "out.csv").read_text().startswith("task,metric,rate,median,")


@pytest.mark.parametrize("damaged", [False, True])
def test_nothing_to_report_is_one_sentence(damaged: bool, tmp_path: Path) -> None:
    sentence = f"no finished runs in {tmp_path}; scripts/sweep_glue.sh makes them"
    if damaged:
        path = tmp_path / "RTE" / "lr-2e-5_seed-1" / "result.json"
        path.parent.mkdir(parents=True)
        path.write_text("{")
        sentence = f"{path} is damaged; delete it, and the run is done again"
    with pytest.raises(SystemExit) as exit:
        glue_cli.main(["report", str(tmp_path)])
    assert exit.value.code == f"glue: {sentence}"


@pytest.mark.slow
def test_the_table_of_glue_is_the_command(root: Path, tmp_path: Path) -> None:
    """Without a warning of Python that it is imported already."""
    help_text = attempt(sys.executable, "-m", "tupe_fairseq.glue", "-h", cwd=tmp_path, PYTHONPATH=str(root))
    assert help_text.stdout.startswith("usage: python -m tupe_fairseq.glue ")
    assert re.search(r"^ +report +the results of scripts/sweep_glue.sh", help_text.stdout, re.MULTILINE)
